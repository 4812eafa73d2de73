"""Models by name: those of torchvision and timm, and those that no library has."""
