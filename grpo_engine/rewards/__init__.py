"""What an answer is worth: TRL-shaped functions, scored in a process of their own."""
