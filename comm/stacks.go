package comm

import (
	"runtime"
	"strings"
)

// maxStacks bounds what stacks writes, in bytes.
const maxStacks = 1 << 20

// stacks tells where the program's goroutines are, without those that are this
// library's or the runtime's: what a rank does that the others wait for.
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

// begun is the function that a goroutine began with, but for what starts goroutines.
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
