"""What every target with blocks of threads shares: default schedules made from its `ThreadFacts`, and its device."""
