package generate

import (
	"strings"
	"unicode/utf8"
)

// Stream turns the tokens of one row into text.
type Stream struct {
	decode func(ids []int64) string
	stop   []string
	emit   func(text string)

	ids     []int64
	emitted int // the number of bytes of the tokens' text that were emitted
	isDone  bool
}

// NewStream returns a Stream that emits text when it is certain. decode returns the text of all tokens of the row so
// far. The text ends before the first of the stop strings.
func NewStream(decode func(ids []int64) string, stop []string, emit func(text string)) *Stream {
	return &Stream{decode: decode, stop: stop, emit: emit}
}

// Add adds a token. It returns false when the text has ended at a stop string.
func (s *Stream) Add(id int64) (more bool) {
	if s.isDone {
		return false
	}
	s.ids = append(s.ids, id)
	text := s.decode(s.ids)
	end := len(text)
	for _, stop := range s.stop {
		if i := strings.Index(text, stop); i >= 0 && i < end {
			end, s.isDone = i, true
		}
	}
	if s.isDone {
		s.send(text[:end])
		return false
	}
	s.send(s.certain(text))
	return true
}

// certain returns the part of the text that later tokens cannot change: it ends before a character that is not whole,
// and before what may be the beginning of a stop string.
func (s *Stream) certain(text string) string {
	text = strings.TrimRight(text, string(utf8.RuneError))
	for i := len(text) - 1; i >= 0 && i >= len(text)-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRuneInString(text[i:]) {
				text = text[:i]
			}
			break
		}
	}
	end := len(text)
	for _, stop := range s.stop {
		for n := min(len(stop)-1, len(text)); n > 0; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				end = min(end, len(text)-n)
				break
			}
		}
	}
	return text[:end]
}

func (s *Stream) send(text string) {
	if len(text) > s.emitted {
		s.emit(text[s.emitted:])
		s.emitted = len(text)
	}
}

// Close emits what was held back. Then no token may be added.
func (s *Stream) Close() {
	if !s.isDone {
		s.isDone = true
		s.send(s.decode(s.ids))
	}
}
