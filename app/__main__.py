"""`python -m app` is the command `grpo-tui`."""

from app.entry import main

raise SystemExit(main())
