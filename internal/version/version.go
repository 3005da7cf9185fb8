// Package version is what the commands answer to --version.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Of is the command's name and the module's version, as the go command stamped it.
func Of(command string) string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("%s %s %s %s/%s", command, v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
