"""Acting: policies, the actor that steps environments, explorers and exports."""
