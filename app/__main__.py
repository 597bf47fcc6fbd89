"""`python -m app` runs the command `grpo-tui`."""

from app.entry import main

raise SystemExit(main())
