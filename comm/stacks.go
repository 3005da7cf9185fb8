package comm

import (
	"runtime"
	"strings"
)

// maxStacks is the largest size of the runtime's dump of all stacks, in bytes. The runtime cuts
// off the rest.
const maxStacks = 1 << 20

// stacks returns the stacks of the program's goroutines. It omits the goroutines that this
// library and the runtime have started. The stacks show what a rank is doing while the other
// ranks wait for it.
func stacks() string {
	buf := make([]byte, maxStacks)
	all := string(buf[:runtime.Stack(buf, true)])
	var program []string
	for g := range strings.SplitSeq(strings.TrimSpace(all), "\n\n") {
		if f := firstFunction(g); !strings.HasPrefix(f, "github.com/goddp/goddp/") && !strings.HasPrefix(f, "os/signal.") && !strings.HasPrefix(f, "runtime.") {
			program = append(program, g)
		}
	}
	return strings.Join(program, "\n\n") + "\n"
}

// firstFunction returns the line of a goroutine's stack that names the function in which the
// goroutine began. It skips functions of package sync, because the goroutines of WaitGroup.Go
// begin in package sync.
func firstFunction(stack string) (f string) {
	for line := range strings.Lines(stack) {
		switch {
		case strings.HasPrefix(line, "created by "):
			return f
		case !strings.HasPrefix(line, "goroutine ") && !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "sync."):
			f = line
		}
	}
	return f
}
