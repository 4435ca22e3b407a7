"""Consumer groups: a pure state machine, its record formats, and the runtime around them."""
