"""What detectors that predict sets need beside a network: boxes, matching, denoising, a loss."""
