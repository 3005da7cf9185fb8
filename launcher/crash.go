package launcher

import (
	"fmt"
	"strings"
)

// Limits of the stack in a report, in frames.
const (
	maxProgramFrames = 12
	maxLibraryFrames = 8
)

// frame is one call on the stack of a goroutine.
type frame struct {
	function string // with its package's import path
	place    string // file:line, or ""
}

func (f frame) String() string { return strings.TrimRight(f.function+" "+f.place, " ") }

// isGoroutineHeader reports whether line is the first line of a goroutine's stack as Go prints
// it, such as "goroutine 1 [running]:".
func isGoroutineHeader(line string) bool {
	return strings.HasPrefix(line, "goroutine ") && strings.HasSuffix(line, "]:")
}

// isStackLine reports whether line can be part of a goroutine's stack.
func isStackLine(line string) bool {
	return line == "" || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "created by ") ||
		strings.HasSuffix(line, ")") || strings.HasPrefix(line, "...")
}

// parseStack returns the frames of the first goroutine in text that Go printed when it
// crashed, innermost first. It returns nil if text holds no goroutine.
func parseStack(text string) (frames []frame) {
	lines := strings.Split(text, "\n")
	for len(lines) > 0 && !isGoroutineHeader(lines[0]) {
		lines = lines[1:]
	}
	if len(lines) == 0 {
		return nil
	}
	for _, line := range lines[1:] {
		switch place, isPlace := strings.CutPrefix(line, "\t"); {
		case line == "" || isGoroutineHeader(line):
			return frames
		case isPlace && len(frames) > 0:
			frames[len(frames)-1].place, _, _ = strings.Cut(place, " +0x")
		default:
			if args := strings.LastIndexByte(line, '('); args > 0 && strings.HasSuffix(line, ")") {
				line = line[:args]
			}
			frames = append(frames, frame{function: line})
		}
	}
	return frames
}

// packagePath returns the import path of the frame's function.
func (f frame) packagePath() string {
	name := strings.TrimPrefix(f.function, "created by ")
	slash := strings.LastIndexByte(name, '/') + 1
	base, _, _ := strings.Cut(name[slash:], ".")
	return name[:slash] + base
}

// isRuntime reports whether the frame belongs to the Go runtime.
func (f frame) isRuntime() bool {
	path := f.packagePath()
	return path == "panic" || path == "runtime" || strings.HasPrefix(path, "runtime/")
}

// isLibrary reports whether the frame belongs to goddp or to Go's standard library. The
// standard library's files are in a folder src that is followed by the import path.
func (f frame) isLibrary() bool {
	path := f.packagePath()
	if strings.HasPrefix(path, "github.com/goddp/goddp/") || f.isRuntime() {
		return true
	}
	root, _, _ := strings.Cut(path, "/")
	folder := f.place[:strings.LastIndexByte(f.place, '/')+1]
	return path != "main" && !strings.Contains(root, ".") &&
		(folder == path+"/" || strings.HasSuffix(folder, "/src/"+path+"/"))
}

// describeStack returns the frames of a crash as a report shows them: the program's own
// frames first, then the libraries' frames, each innermost first. It leaves out the
// runtime's frames, and the libraries' frames that only pass the panic on. It returns nil
// if text holds no goroutine.
func describeStack(text string) (lines []string) {
	frames := parseStack(text)
	site := 0 // the first frame below the earliest panic
	for i, f := range frames {
		if f.function == "panic" {
			site = i + 1
		}
	}
	var program, libraries []string
	for i, f := range frames {
		switch {
		case !f.isLibrary():
			program = append(program, f.String())
		case i >= site && !f.isRuntime():
			libraries = append(libraries, f.String())
		}
	}
	add := func(title string, frames []string, limit int) {
		if len(frames) == 0 {
			return
		}
		lines = append(lines, title)
		for _, f := range frames[:min(limit, len(frames))] {
			lines = append(lines, "  "+f)
		}
		if more := len(frames) - limit; more > 0 {
			lines = append(lines, fmt.Sprintf("  ... %d more", more))
		}
	}
	add("in the program, innermost call first:", program, maxProgramFrames)
	add("in libraries, innermost call first:", libraries, maxLibraryFrames)
	return lines
}

// stackHolder keeps the stack that a crashing Go program prints away from the console: the
// report shows it in short form. The line that says why the program crashed is not held.
// The zero value is ready to use.
type stackHolder struct {
	state holdState
	held  []string
}

type holdState int

const (
	holdNothing holdState = iota
	inMessage             // after "panic: ", before the stack
	inStack
)

// maxHeld bounds the lines that a stackHolder keeps.
const maxHeld = 200

// next takes a line and returns the lines to show now. A line that belongs to no stack
// releases the held lines, because the program still runs. A second goroutine releases the
// held lines too, because a program prints all goroutines only if the user asked for them.
func (h *stackHolder) next(line string) (show []string) {
	switch h.state {
	case holdNothing:
		if strings.HasPrefix(line, "panic: ") {
			h.state = inMessage
		}
		return []string{line}
	case inMessage:
		switch {
		case strings.HasPrefix(line, "goroutine "):
			h.state = inStack
			h.held = append(h.held, line)
			return nil
		case line == "" && len(h.held) == 0:
			h.held = []string{line}
			return nil
		}
		show, h.held = append(h.held, line), nil
		return show
	}
	if isStackLine(line) && len(h.held) < maxHeld {
		h.held = append(h.held, line)
		return nil
	}
	return append(h.release(), line)
}

// hold keeps the last line of a stack, which the end of the process may have cut off, and
// reports whether a stack is held.
func (h *stackHolder) hold(line string) bool {
	if h.state == inStack {
		h.held = append(h.held, line)
	}
	return h.state == inStack
}

// release returns the lines that are held, and holds them no longer.
func (h *stackHolder) release() (held []string) {
	held, h.state, h.held = h.held, holdNothing, nil
	return held
}
