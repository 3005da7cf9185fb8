// Package browser tests the page of golaunch in Chromium. It is a module of its own, because chromedp is of use nowhere else.
package browser
