package generate

import (
	"context"
	"strings"
)

// Pieces turns tokens into text, one at a time, as the Stream of package hf/tokenizer does: End returns the rest.
type Pieces interface {
	Next(token int) string
	End() string
}

// Text continues one prompt and emits its text as it comes, up to one of the stop strings. It calls opts.OnToken too.
// opts may be nil.
func (g *Generator) Text(ctx context.Context, prompt []int, pieces Pieces, stop []string, opts *Options, emit func(text string)) error {
	s := NewStream(stop, emit)
	o := Options{}
	if opts != nil {
		o = *opts
	}
	also := o.OnToken
	o.OnToken = func(row, id int) bool {
		more := also == nil || also(row, id)
		return s.Add(pieces.Next(id)) && more
	}
	_, err := g.Generate(ctx, [][]int{prompt}, &o)
	s.Add(pieces.End())
	s.Close()
	return err
}

// Stream passes on the text of one row as it comes, up to a stop string.
type Stream struct {
	stop []string
	emit func(text string)

	text    string
	emitted int // the number of bytes of the text that were emitted
	isDone  bool
}

// NewStream returns a Stream that calls emit with text that is certain. The text ends before the first of the stop
// strings.
func NewStream(stop []string, emit func(text string)) *Stream { return &Stream{stop: stop, emit: emit} }

// Add adds text. It returns false when the text has ended at a stop string.
func (s *Stream) Add(text string) (more bool) {
	if s.isDone {
		return false
	}
	s.text += text
	end, certain := len(s.text), len(s.text)
	for _, stop := range s.stop {
		if i := strings.Index(s.text, stop); i >= 0 && i < end {
			end, s.isDone = i, true
		}
		for n := min(len(stop)-1, len(s.text)); n > 0; n-- {
			if strings.HasSuffix(s.text, stop[:n]) { // what may be the beginning of a stop string is held back
				certain = min(certain, len(s.text)-n)
				break
			}
		}
	}
	if s.isDone {
		certain = end
	}
	s.send(certain)
	return !s.isDone
}

// Close emits what was held back.
func (s *Stream) Close() {
	if !s.isDone {
		s.isDone = true
		s.send(len(s.text))
	}
}

func (s *Stream) send(end int) {
	if end > s.emitted {
		s.emit(s.text[s.emitted:end])
		s.emitted = end
	}
}
