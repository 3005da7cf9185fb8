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
	// maxLine bounds a shown line; a longer one is continued on the next, after the prefix.
	maxLine = 64 << 10
	// drainGrace is how long an ended worker's pipe may stay open in the hands
	// of a process that was not found.
	drainGrace = 100 * time.Millisecond
	// maxBacklog bounds what is read from a pipe after that; no pipe holds more
	// unless root enlarged it.
	maxBacklog = 1 << 20
)

// stream carries one output stream of one worker from its pipe to where it is
// wanted. Its fields belong to the goroutine that runs copy.
type stream struct {
	pipe    *os.File // read end, closed by copy
	console *console
	shown   io.Writer       // one of the console's writers, or nil
	redraws bool            // shown is a terminal, which redraws lines in place
	hidden  <-chan struct{} // closed when the console is waited for no longer
	prefix  string
	file    *os.File     // gets the bytes unchanged, closed by copy; or nil
	tail    *tail        // remembers the last lines; or nil
	holder  *stackHolder // keeps a crash's stack from being shown; or nil

	lines splitter
	out   []byte // lines with prefix, on their way to the console
}

// copy runs until every writer has closed the pipe, or endSoon has cut it off.
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
		s.closeFile(s.file.Close())
	}
}

// endSoon makes copy return when what the pipe holds has been read, whoever
// still holds its other end.
func (s *stream) endSoon() {
	_ = s.pipe.SetReadDeadline(time.Now().Add(drainGrace)) // fails only if copy has closed it
}

// takeBacklog takes what is in the pipe without waiting for more.
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

func (s *stream) take(p []byte) {
	if s.file != nil && len(p) > 0 {
		if _, err := s.file.Write(p); err != nil {
			s.file.Close()
			s.closeFile(err)
		}
	}
	s.lines.feed(p, s.line)
	s.show()
}

// closeFile forgets the file, and says so if err is why.
func (s *stream) closeFile(err error) {
	s.file = nil
	if err != nil {
		s.console.logf("log file: %v", err)
	}
}

// line passes a line on. On a terminal the next line takes the place of one that is redrawn.
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

// append adds a line to those that show writes. A terminal erases a line that ended with
// a lone "\r" before it shows the next.
func (s *stream) append(text []byte, redrawn bool) {
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

// showStack shows the stack that is held, if there is one. It must be called after copy
// has returned.
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

// show writes the lines gathered from one read in one call.
func (s *stream) show() {
	if len(s.out) == 0 {
		return
	}
	if !s.console.write(s.shown, s.out, s.hidden) {
		s.shown, s.out = nil, nil // the console may still be at it
	}
	s.out = s.out[:0]
}

// splitter cuts a byte stream into lines without their ends. A line ends with
// "\n", "\r\n", or a lone "\r", which is how progress bars redraw; a "\r" with
// no text before it is not a line. A line never exceeds maxLine bytes.
type splitter struct {
	partial []byte
	afterCR bool // partial is a line that ended with "\r": the next byte tells how
}

// feed calls emit for each line that p completes, and tells whether it ended with a
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

// flush emits the last line if nothing ended it.
func (s *splitter) flush(emit func(line []byte, redrawn bool)) {
	if len(s.partial) > 0 {
		s.emit(nil, false, emit)
	}
}

func (s *splitter) emit(rest []byte, redrawn bool, emit func([]byte, bool)) {
	if len(s.partial) == 0 {
		emit(rest, redrawn)
		return
	}
	s.partial = append(s.partial, rest...)
	emit(s.partial, redrawn)
	s.partial = s.partial[:0]
}

// lineEnd is the index of the first line end in p, or -1.
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
