"""The built book in a real browser: pages open, search finds, code unfolds, nothing leaves."""

import http.server
import json
import shutil
import threading
from functools import partial

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

SECONDS = 60
WIDTH = """return Math.max(document.documentElement.scrollWidth, ...[...document.querySelectorAll(
    '.bd-main, .bd-content, .bd-article-container, .bd-article')].map(e =>
    e.getBoundingClientRect().left + e.scrollWidth))"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args):
        pass


@pytest.fixture(scope="module")
def site(html):
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=html)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not chromium:
        pytest.skip("needs chromium and chromedriver (Debian: chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000",
                 "--disable-background-networking", "--disable-dev-shm-usage"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    browser.set_page_load_timeout(SECONDS)
    yield browser
    browser.quit()


def wait(browser, condition):
    return WebDriverWait(browser, SECONDS).until(condition)


def requested(browser):
    """Addresses asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events
            if event["method"] == "Network.requestWillBeSent"]  # fmt: skip


def contents(browser):
    return browser.find_elements(By.CSS_SELECTOR, "nav.bd-links a.reference.internal")


def test_every_page_of_the_contents_opens_by_a_click(browser, site):
    browser.get(f"{site}/intro.html")
    targets = [link.get_attribute("href").split("#")[0] for link in contents(browser)]
    assert len(targets) > 10
    for target in targets:
        (link,) = (a for a in contents(browser) if a.get_attribute("href").split("#")[0] == target)
        browser.execute_script(
            "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", link
        )
        link.click()
        wait(browser, lambda b, target=target: b.current_url.split("#")[0] == target)
        assert browser.find_element(By.CSS_SELECTOR, "article h1").text
        broken = browser.execute_script(
            "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        )
        assert broken == []
    urls = requested(browser)
    assert len(urls) > len(targets)
    assert [u for u in urls if not u.startswith((site, "data:", "blob:"))] == []
    errors = [e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    assert [e for e in errors if "favicon" not in e] == []


def test_search_finds_a_term(browser, site):
    browser.get(f"{site}/search.html?q=fragility")
    wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li a"))
    found = [a.get_attribute("href") for a in
             browser.find_elements(By.CSS_SELECTOR, "#search-results li a")]  # fmt: skip
    assert any("04_fragility" in href for href in found)


def test_the_search_box_opens_from_the_keyboard(browser, site):
    browser.get(f"{site}/intro.html")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.CONTROL, "k")
    wait(browser, lambda b: b.switch_to.active_element.get_attribute("name") == "q")
    field = browser.switch_to.active_element
    field.send_keys("rotary", Keys.ENTER)
    wait(browser, lambda b: "search.html" in b.current_url)
    wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li a"))


def test_hidden_code_opens(browser, site):
    browser.get(f"{site}/chapters/04_fragility.html")
    details = browser.find_element(By.CSS_SELECTOR, "details.hide")
    code = details.find_element(By.CSS_SELECTOR, "pre")
    assert not code.is_displayed()
    summary = details.find_element(By.TAG_NAME, "summary")
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", summary
    )
    summary.click()
    wait(browser, lambda _b: code.is_displayed())
    assert "results.add(" in code.text


def test_equations_are_rendered(browser, site):
    browser.get(f"{site}/methods.html")
    wait(browser, lambda b: len(b.find_elements(By.CSS_SELECTOR, "mjx-container")) > 10)
    assert not browser.find_elements(By.CSS_SELECTOR, "mjx-merror")
    assert "\\frac" not in browser.find_element(By.TAG_NAME, "article").text


@pytest.mark.parametrize("width", [400, 1400])
def test_no_page_is_wider_than_the_screen(browser, site, width):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": 900, "deviceScaleFactor": 1,
                             "mobile": False})  # fmt: skip
    try:
        for page in ("intro", "methods", "chapters/00_scoreboard", "chapters/04_fragility"):
            browser.get(f"{site}/{page}.html")
            assert browser.execute_script(WIDTH) <= width + 1, page
        browser.execute_script(  # a page that is too wide would be seen
            "const d = document.createElement('div'); d.style.width = '3000px';"
            "d.style.height = '9px'; document.querySelector('article').append(d)"
        )
        assert browser.execute_script(WIDTH) > width + 1
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
