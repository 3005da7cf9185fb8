package launcher

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

const (
	// maxLine is the longest line that is shown. A longer one continues on the next line,
	// after the prefix.
	maxLine = 64 << 10
	// drainGrace is how long the agent reads from the pipe of an ended worker if another
	// process still holds the pipe open.
	drainGrace = 100 * time.Millisecond
	// maxBacklog is the largest number of bytes read from a pipe after drainGrace. No pipe
	// holds more, unless root enlarged it.
	maxBacklog = 1 << 20
)

// stream copies one output stream of one worker from its pipe to the console and to a
// file. Only the goroutine that runs copy uses its fields, until copy has returned.
type stream struct {
	pipe    *os.File // read end, closed by copy
	console *console
	shown   io.Writer       // one of the console's writers, or nil
	redraws bool            // shown is a terminal, which redraws lines in place
	hidden  <-chan struct{} // closed when copy must no longer wait for the console
	prefix  string
	json    *jsonLine    // what all JSON lines of the stream have in common; nil: lines are text, after prefix
	file    *logFile     // gets the bytes unchanged, closed by copy; or nil
	tail    *tail        // remembers the last lines; or nil
	holder  *stackHolder // keeps a crash's stack from being shown; or nil

	lines splitter
	out   []byte // lines with their prefix, to be written to the console
}

// copy copies the stream until every writer has closed the pipe, or until endSoon's
// deadline has passed.
func (s *stream) copy() {
	defer s.pipe.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := s.pipe.Read(buf)
		s.take(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.takeBacklog(buf)
		}
		if err != nil {
			break
		}
	}
	s.lines.flush(func(text []byte, redrawn bool) {
		if s.holder == nil || !s.holder.hold(string(text)) {
			s.line(text, redrawn)
		}
	})
	s.show()
	if s.file != nil {
		s.file.close()
	}
}

// endSoon makes copy return after it has read what the pipe holds, even if a process still
// holds the other end.
func (s *stream) endSoon() {
	_ = s.pipe.SetReadDeadline(time.Now().Add(drainGrace)) // fails only if copy has closed it
}

// takeBacklog reads what the pipe holds. It does not wait for more.
func (s *stream) takeBacklog(buf []byte) {
	if s.pipe.SetReadDeadline(time.Time{}) != nil {
		return
	}
	raw, err := s.pipe.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < maxBacklog; {
		var n int
		err := raw.Read(func(fd uintptr) bool {
			n, _ = syscall.Read(int(fd), buf)
			return true // never wait
		})
		if err != nil || n <= 0 {
			return
		}
		s.take(buf[:n])
		total += n
	}
}

// take writes p to the file and shows the lines that p completes.
func (s *stream) take(p []byte) {
	if s.file != nil {
		s.file.write(p)
	}
	s.lines.feed(p, s.line)
	s.show()
}

// line handles one complete line of the worker. redrawn says that the line ended with a
// lone "\r".
func (s *stream) line(text []byte, redrawn bool) {
	if s.tail != nil {
		s.tail.add(text)
	}
	if s.shown == nil {
		return
	}
	if s.holder == nil {
		s.append(text, redrawn)
		return
	}
	for _, line := range s.holder.next(string(text)) {
		s.append([]byte(line), redrawn)
	}
}

// append adds a line to the lines that show writes. On a terminal, the next line replaces
// a line that ended with a lone "\r".
func (s *stream) append(text []byte, redrawn bool) {
	if s.json != nil {
		s.out = s.json.append(s.out, string(text))
		return
	}
	if n := len(s.out); n > 0 && s.out[n-1] == '\r' {
		s.out = append(s.out, eraseLine...)
	}
	s.out = append(s.out, s.prefix...)
	s.out = append(s.out, text...)
	if redrawn && s.redraws {
		s.out = append(s.out, '\r')
	} else {
		s.out = append(s.out, '\n')
	}
}

// showStack shows the stack that the holder keeps, if there is one. It must be called
// after copy has returned.
func (s *stream) showStack() {
	if s.holder == nil || s.shown == nil {
		return
	}
	for _, line := range s.holder.release() {
		s.append([]byte(line), false)
	}
	s.console.put(s.shown, s.out)
	s.out = nil
}

// show writes the lines of one read from the pipe to the console, in one write.
func (s *stream) show() {
	if len(s.out) == 0 {
		return
	}
	if !s.console.write(s.shown, s.out, s.hidden) {
		s.shown, s.out = nil, nil // the console may still be writing s.out
	}
	s.out = s.out[:0]
}

// splitter cuts a byte stream into lines and removes their ends. A line ends with "\n",
// with "\r\n", or with a lone "\r", as progress bars write it. A "\r" without text before
// it ends no line. No line is longer than maxLine bytes.
type splitter struct {
	partial []byte
	afterCR bool // partial ended with "\r"; the next byte shows whether the end is "\r\n"
}

// feed calls emit for each line that p completes. redrawn says that the line ended with a
// lone "\r". emit must not keep its argument.
func (s *splitter) feed(p []byte, emit func(line []byte, redrawn bool)) {
	for len(p) > 0 {
		if s.afterCR {
			s.afterCR = false
			s.emit(nil, p[0] != '\n', emit)
			if p[0] == '\n' {
				p = p[1:]
			}
			continue
		}
		end := lineEnd(p)
		text := p
		if end >= 0 {
			text = p[:end]
		}
		if limit := maxLine - len(s.partial); len(text) > limit {
			s.emit(p[:limit], false, emit)
			p = p[limit:]
			continue
		}
		if end < 0 {
			s.partial = append(s.partial, p...)
			return
		}
		if p[end] == '\n' {
			s.emit(text, false, emit)
		} else {
			s.partial = append(s.partial, text...)
			s.afterCR = len(s.partial) > 0
		}
		p = p[end+1:]
	}
}

// flush emits the last line if it has no end.
func (s *splitter) flush(emit func(line []byte, redrawn bool)) {
	if len(s.partial) > 0 {
		s.emit(nil, false, emit)
	}
}

// emit emits the partial line with rest appended.
func (s *splitter) emit(rest []byte, redrawn bool, emit func([]byte, bool)) {
	if len(s.partial) == 0 {
		emit(rest, redrawn)
		return
	}
	s.partial = append(s.partial, rest...)
	emit(s.partial, redrawn)
	s.partial = s.partial[:0]
}

// lineEnd returns the index of the first "\n" or "\r" in p, or -1.
func lineEnd(p []byte) int {
	lf := bytes.IndexByte(p, '\n')
	if lf >= 0 {
		p = p[:lf]
	}
	if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
		return cr
	}
	return lf
}
