"""How much energy a device has used: one small file per source."""
