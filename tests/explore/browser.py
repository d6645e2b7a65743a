"""A real Chromium, driven through its DevTools protocol over two pipes: no package is needed for that.

with Browser() as browser:
    page = browser.open(path)
    page.value("document.title")
    page.press("j"); page.type("conv"); page.screenshot(path)
    page.problems                       whatever the console said, exceptions, requests
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}


def find_chromium():
    """The program, or None."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One process; a page at a time."""

    def __init__(self, dark=False, width=1440, height=900):
        self.folder = tempfile.mkdtemp(prefix="weft-browser-")
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
                 f"--user-data-dir={self.folder}", f"--window-size={width},{height}"]  # fmt: skip
        flags += ["--force-dark-mode"] if dark else []

        def wire():
            # Chromium reads commands from 3 and writes answers to 4.
            first, second = os.dup(to_child), os.dup(from_child)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self.process = subprocess.Popen(
            [find_chromium(), *flags], preexec_fn=wire, pass_fds=(3, 4), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._rest, self._number, self._listeners = b"", 0, []
        self.dark, self.size = dark, (width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError, BrokenPipeError):
            self.process.kill()
        self.process.wait(timeout=PATIENCE)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, session=None, **given):
        """What a method of the protocol answers; events that come before are handed to the listeners."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number, until = self._number, time.monotonic() + PATIENCE
        while time.monotonic() < until:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise RuntimeError(f"{method} took too long")

    def _next(self):
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise RuntimeError("the browser went away")
            self._rest += piece
        first, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(first)
        for listener in self._listeners:
            listener(message)
        return message

    def open(self, path, fragment=""):
        """A page of a file."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.go(path, fragment)
        return page


class Page:
    """One tab."""

    def __init__(self, browser, session):
        self.browser, self.session, self.problems = browser, session, []
        browser._listeners = [self._heard]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        width, height = browser.size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.theme("dark" if browser.dark else "light")

    def call(self, method, **given):
        return self.browser.call(method, self.session, **given)

    def _heard(self, message):
        method, given = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
            self.problems.append(f"console: {given['args']}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {given['exceptionDetails']}")
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {given['entry']['text']}")
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(("file:", "data:")):
            self.problems.append(f"request: {given['request']['url']}")

    def theme(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def go(self, path, fragment=""):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"{Path(path).resolve().as_uri()}{fragment}")
        self.wait(f"document.body && document.body.dataset.ready === {json.dumps(fragment or '#')}")

    def value(self, expression):
        """What an expression of JavaScript is."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression):
        until = time.monotonic() + PATIENCE
        while not self.value(expression):
            if time.monotonic() > until:
                raise AssertionError(f"never came true: {expression}; {self.problems}")
            time.sleep(0.02)

    def show(self, fragment):
        """Goes to another place of the page."""
        self.value(f"location.hash = {json.dumps(fragment)}; 0")
        self.wait(f"document.body.dataset.ready === {json.dumps(fragment)}")

    def press(self, key, control=False):
        code = KEYS.get(key, ord(key[0].upper()) if len(key) == 1 else 0)
        text = {} if len(key) > 1 and key != "Enter" or control else {"text": "\r" if key == "Enter" else key}
        given = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 2 if control else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **given, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path, whole=False):
        """A picture of what is seen, or of all of the page."""
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(made["data"]))
