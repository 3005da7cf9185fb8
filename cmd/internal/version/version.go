// Package version returns the text that the commands print for --version.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Of returns the command's name and the module's version, which the go command put into the
// binary.
func Of(command string) string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s %s %s %s/%s", command, v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
