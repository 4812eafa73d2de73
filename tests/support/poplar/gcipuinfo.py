"""A module with gcipuinfo's interface: two GC200 of one board, in text as Graphcore's answers."""

# ruff: noqa: N801, N802 -- names of the package that it stands for

IpuPower = "ipu power"
_BOARD = {"board serial number": "0024.0002.8203321", "ipu architecture": "ipu2", "board type": "M2000"}


class gcipuinfo:
    def getDevices(self):
        return [{**_BOARD, "board ipu index": str(place)} for place in range(2)]

    def setUpdateMode(self, update):
        assert update

    def getNamedAttributeForAll(self, attribute):
        assert attribute == IpuPower
        return ["62.1W", "58.25W"]
