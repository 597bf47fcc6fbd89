"""`python -m grpo_tui` runs the command `grpo-tui`."""

from grpo_tui.app.entry import main

raise SystemExit(main())
