"""What tests of the page share: addresses, waits, and checks of what is seen."""

from __future__ import annotations

from playwright.sync_api import Page, expect

__all__ = ["FAINT_TEXT", "TOKEN", "WORST", "address", "nudge", "overflow_px", "shown"]

WORST = "shop/eu/persistent/clicks-partition-0"
TOKEN = "a-token-that-is-long-enough"

#: Text that is seen, with the contrast to what lies behind it (WCAG 2.1, 1.4.3), where that is too low.
FAINT_TEXT = """() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("svg, noscript, script, :disabled")) continue;
    if (!node.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const style = getComputedStyle(node);
    const [one, other] = [light(parse(style.color)), light(behind(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 600);
    if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return found;
}"""


def address(stream: str) -> str:
    return f"#/stream/{stream.replace('/', '%2F')}"


def shown(page: Page) -> Page:
    """Waits until the page has something to show."""
    expect(page.locator("#state")).not_to_have_attribute("data-state", "loading")
    expect(page.get_by_text("Loading…").filter(visible=True)).to_have_count(0)
    return page


def nudge(page: Page) -> None:
    """What happens when somebody comes back to the tab: the page asks at once."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def overflow_px(page: Page) -> int:
    found: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found
