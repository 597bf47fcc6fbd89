"""The driver of a window in a browser: it ends with the server, however that ends."""

from textual.drivers.web_driver import WebDriver
from textual.messages import ExitApp


class ServedDriver(WebDriver):
    """Textual's, which would run on when its input is closed."""

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._app.post_message(ExitApp())
