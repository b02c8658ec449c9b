// Package chromium has the tests of the console in a real browser: Debian's chromium, driven by
// chromedp. It is a module of its own, so that the product does not depend on that.
package chromium
