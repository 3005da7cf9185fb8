//go:build !linux

package main

import "errors"

func asUser(int, func()) error { return errors.ErrUnsupported }
