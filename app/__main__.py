"""`python -m app` is the command `grpo-tui`."""

from app.main import main

raise SystemExit(main())
