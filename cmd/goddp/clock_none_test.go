//go:build !(cgo && linux && amd64)

package main

func clockMain() {}
