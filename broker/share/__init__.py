"""Share groups (KIP-932): what members of a group have of a partition that they share, and where it is stored."""
