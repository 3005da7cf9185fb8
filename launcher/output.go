package launcher

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/printer"
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
	shown   *printer.Output // the console's output that shows the lines, or nil
	redraws bool            // shown is a terminal, which redraws lines in place
	hurry   <-chan struct{} // closed when the method copy must no longer wait for the console
	prefix  string
	json    *jsonLine         // what all JSON lines of the stream have in common; nil: lines are text, after prefix
	file    *os.File          // gets the bytes unchanged, closed by copy; nil if there is none, or after an error
	note    func(text []byte) // is told each line; or nil
	tail    *tail             // remembers the last lines; or nil
	holder  *stackHolder      // keeps a crash's stack from being shown; or nil

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
			takeBacklog(s.pipe, buf, s.take)
		}
		if err != nil {
			break
		}
	}
	s.lines.flush(func(text []byte, end ending) {
		if s.holder == nil || !s.holder.hold(string(text)) {
			s.line(text, end)
		}
	})
	s.show()
	if s.file != nil {
		s.fileWritten(s.file.Close())
	}
}

// endSoon makes copy return after it has read what the pipe holds, even if a process still
// holds the other end.
func (s *stream) endSoon() {
	_ = s.pipe.SetReadDeadline(time.Now().Add(drainGrace)) // fails only if copy has closed it
}

// takeBacklog gives to take what a pipe or a socket holds whose deadline has passed. It does not wait for more.
func takeBacklog(from interface {
	syscall.Conn
	SetReadDeadline(time.Time) error
}, buf []byte, take func([]byte)) {
	if from.SetReadDeadline(time.Time{}) != nil {
		return
	}
	raw, err := from.SyscallConn()
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
		take(buf[:n])
		total += n
	}
}

// take writes p to the file and shows the lines that p completes.
func (s *stream) take(p []byte) {
	if s.file != nil {
		_, err := s.file.Write(p)
		s.fileWritten(err)
	}
	s.lines.feed(p, s.line)
	s.show()
}

// fileWritten takes the result of a write to the file, or of its end. After an error the file gets no more bytes.
func (s *stream) fileWritten(err error) {
	if err != nil {
		s.console.lose(err)
		s.file.Close()
		s.file = nil
	}
}

// line handles one line of the worker.
func (s *stream) line(text []byte, end ending) {
	if end != redraw || !s.redraws {
		if s.tail != nil {
			s.tail.add(text)
		}
		if s.note != nil {
			s.note(text)
		}
	}
	if s.shown == nil {
		return
	}
	if s.holder == nil {
		s.append(text, end)
		return
	}
	lines := s.holder.next(string(text))
	for i, line := range lines {
		if i == len(lines)-1 {
			s.append([]byte(line), end)
		} else {
			s.append([]byte(line), newline)
		}
	}
}

// columns returns how many columns of the terminal a line that is redrawn may have after the prefix, or 0 if lines are
// not redrawn. The last column stays free, because a terminal may break a line that fills it.
func (s *stream) columns() int {
	if !s.redraws {
		return 0
	}
	return max(s.shown.Columns()-len(s.prefix)-1, 0)
}

// clip shortens a line to the given number of characters, unless it has escape sequences or columns is 0. A terminal would
// break a longer line, and redraw only its last part.
func clip(line []byte, columns int) []byte {
	if columns == 0 || bytes.IndexByte(line, '\x1b') >= 0 {
		return line
	}
	n := 0
	for i := range string(line) {
		if n == columns {
			return line[:i]
		}
		n++
	}
	return line
}

// append adds a line to s.out, which s.show writes. On a terminal, the next line replaces
// a line that ended with a lone "\r".
func (s *stream) append(text []byte, end ending) {
	if s.json != nil {
		line := *s.json
		line.Partial = end == cut
		s.out = line.append(s.out, string(text))
		return
	}
	if n := len(s.out); n > 0 && s.out[n-1] == '\r' {
		s.out = append(s.out, printer.EraseLine...)
	}
	s.out = append(s.out, s.prefix...)
	if end == redraw {
		text = clip(text, s.columns())
	}
	s.out = append(s.out, text...)
	if end == redraw && s.redraws {
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
		s.append([]byte(line), newline)
	}
	s.shown.Put(s.out)
	s.out = nil
}

// show gives the lines of one read from the pipe to the console, for one write.
func (s *stream) show() {
	if len(s.out) == 0 {
		return
	}
	s.shown.Write(bytes.Clone(s.out), s.hurry)
	s.out = s.out[:0]
}

// ending says how a line of a worker ends.
type ending int

const (
	newline ending = iota // the line ends with "\n", with "\r\n", or at the end of the stream
	redraw                // the line ends with a lone "\r"
	cut                   // the line is longer than maxLine, and the next line continues it
)

// splitter cuts a byte stream into lines and removes their ends. A line ends with "\n",
// with "\r\n", or with a lone "\r", as progress bars write it. A "\r" without text before
// it ends no line. No line is longer than maxLine bytes.
type splitter struct {
	partial []byte
	afterCR bool // partial ended with "\r"; the next byte shows whether the end is "\r\n"
}

// feed calls emit for each line that p completes. emit must not keep its argument.
func (s *splitter) feed(p []byte, emit func(line []byte, end ending)) {
	for len(p) > 0 {
		if s.afterCR {
			s.afterCR = false
			if p[0] == '\n' {
				s.emit(nil, newline, emit)
				p = p[1:]
			} else {
				s.emit(nil, redraw, emit)
			}
			continue
		}
		end := lineEnd(p)
		text := p
		if end >= 0 {
			text = p[:end]
		}
		if limit := maxLine - len(s.partial); len(text) > limit {
			s.emit(p[:limit], cut, emit)
			p = p[limit:]
			continue
		}
		if end < 0 {
			s.partial = append(s.partial, p...)
			return
		}
		if p[end] == '\n' {
			s.emit(text, newline, emit)
		} else {
			s.partial = append(s.partial, text...)
			s.afterCR = len(s.partial) > 0
		}
		p = p[end+1:]
	}
}

// flush emits the last line if it has no end.
func (s *splitter) flush(emit func(line []byte, end ending)) {
	if len(s.partial) > 0 {
		s.emit(nil, newline, emit)
	}
}

// emit emits the partial line with rest appended.
func (s *splitter) emit(rest []byte, end ending, emit func([]byte, ending)) {
	if len(s.partial) == 0 {
		emit(rest, end)
		return
	}
	s.partial = append(s.partial, rest...)
	emit(s.partial, end)
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
