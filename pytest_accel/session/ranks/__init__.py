"""Items that run in processes of their own, one or a gang: those processes, and their answers as one."""
