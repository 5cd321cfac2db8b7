"""A page as PDF: by the Chromium that is on the machine, else by WeasyPrint (extra `pdf`). Nothing is fetched."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..errors import MissingExtra, RouterError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_WAIT_S = 300.0  # a long trace on a busy machine


def write_pdf(page: str, target: Path) -> None:
    """Writes the HTML `page` as PDF. Raises `MissingExtra` where there is nothing to make it with, `RouterError`."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is not None:
        _by_browser(browser, page, target)
    else:
        _by_library(page, target)


def _by_browser(browser: str, page: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        source, made = Path(folder, "trace.html"), Path(folder, "trace.pdf")
        source.write_text(page, "utf-8")
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--no-pdf-header-footer",
            f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", source.as_uri(),
        ]  # fmt: skip
        if getattr(os, "geteuid", lambda: 1)() == 0:  # Chromium refuses its sandbox to root
            command.insert(1, "--no-sandbox")
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_WAIT_S)
            shutil.copyfile(made, target)
        except (subprocess.SubprocessError, FileNotFoundError) as error:
            raise RouterError(
                f"{Path(browser).name} made no PDF ({type(error).__name__}): write --html and print that instead"
            ) from None


def _by_library(page: str, target: Path) -> None:
    try:
        from weasyprint import HTML
    except (ImportError, OSError) as error:  # OSError: Pango, which pip does not install, is not there
        raise MissingExtra("What makes a PDF (Chromium, or WeasyPrint with Pango)", "pdf") from error

    def refuse(url: str, *_: object, **__: object) -> None:
        raise ValueError(f"a trace needs nothing from elsewhere, yet asks for {url[:80]}")

    HTML(string=page, url_fetcher=refuse).write_pdf(target)
