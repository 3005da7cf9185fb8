package generate

import (
	"cmp"
	"context"
	"strings"
)

// Pieces turns tokens into text. It is the Stream of package hf/tokenizer, or has its methods.
type Pieces interface {
	// Next returns the text that a token adds.
	Next(token int) string
	// End returns the text that Next held back. It is called once, after the last token.
	End() string
}

// Text continues one prompt. It calls emit with the text as it comes, up to the first of the stop strings, and
// opts.OnToken with the tokens. opts may be nil. An error is that of [Generator.Generate], after the text until then.
func (g *Generator) Text(ctx context.Context, prompt []int, pieces Pieces, stop []string, opts *Options, emit func(text string)) error {
	t := text{stop: stop, emit: emit}
	o := *cmp.Or(opts, &Options{})
	also := o.OnToken
	o.OnToken = func(row, id int) bool {
		more := also == nil || also(row, id)
		return t.add(pieces.Next(id)) && more
	}
	_, err := g.Generate(ctx, [][]int{prompt}, &o)
	if t.add(pieces.End()) {
		t.send(len(t.held))
	}
	return err
}

// text emits the text of a row, up to a stop string.
type text struct {
	stop   []string
	emit   func(text string)
	held   string // the text that is not emitted: a stop string may begin with it
	isDone bool
}

// add adds text. It returns false when the text has ended at a stop string.
func (t *text) add(more string) bool {
	if t.isDone {
		return false
	}
	t.held += more
	end, certain := len(t.held), len(t.held)
	for _, stop := range t.stop {
		if i := strings.Index(t.held, stop); i >= 0 && i < end {
			end, t.isDone = i, true
		}
		for n := min(len(stop)-1, len(t.held)); n > 0; n-- {
			if strings.HasSuffix(t.held, stop[:n]) {
				certain = min(certain, len(t.held)-n)
				break
			}
		}
	}
	if t.isDone {
		certain = end
	}
	t.send(certain)
	return !t.isDone
}

// send emits the first n held bytes.
func (t *text) send(n int) {
	if n > 0 {
		t.emit(t.held[:n])
		t.held = t.held[n:]
	}
}
