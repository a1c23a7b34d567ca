"""Knowledge distillation from trained models."""
