package backend

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/coordinator"
)

// Describe is cause, why a group breaks on this rank, as the coordinator tells it to the other
// ranks. [Cause] is what they make of it.
func Describe(cause error) *coordinator.Failure {
	d := detail{Text: cut(cause.Error())}
	var call *CallError
	if errors.As(cause, &call) {
		d.Call = &callDetail{Rank: call.Rank, Group: call.Group, Call: call.Call, Name: cut(call.Name)}
		d.Text = cut(call.Err.Error())
	}
	var lost *PeerLostError
	var aborted *AbortedError
	switch {
	case errors.As(cause, &aborted):
		d.By, d.Text = &aborted.By, cut(aborted.Err.Error())
	case errors.As(cause, &lost):
		d.Lost = &lostDetail{Peer: lost.Peer, Left: lost.Left}
		if lost.Err != nil {
			d.Lost.Text = cut(lost.Err.Error())
		}
	case errors.As(cause, &d.Timeout):
		late := *d.Timeout
		late.Diagnosis = cut(late.Diagnosis)
		d.Timeout = &late
	case errors.As(cause, &d.Mismatch), errors.As(cause, &d.Usage):
	}
	switch {
	case errors.Is(cause, ErrPeerLost):
		d.Kind = "lost"
	case errors.Is(cause, ErrTimeout):
		d.Kind = "timeout"
	}
	return &coordinator.Failure{Text: cut(cause.Error()), Detail: d.marshal()}
}

// Cause is why a group broke, for the ranks that did not report it themselves. It names ranks as
// the job numbers them.
func Cause(f *coordinator.Failure) error {
	switch f.Kind {
	case coordinator.Lost:
		return &PeerLostError{Peer: f.Ranks[0]}
	case coordinator.Departed:
		return &PeerLostError{Peer: f.Ranks[0], Left: true}
	case coordinator.Unreachable:
		return &told{f.Text, ErrPeerLost}
	case coordinator.Reported:
	default:
		return &told{f.Error(), ErrAborted}
	}
	var d detail
	if err := json.Unmarshal(f.Detail, &d); err != nil {
		return &AbortedError{By: f.Reporter, Err: &told{text: f.Text}}
	}
	cause := d.err(f.Reporter)
	if d.Call != nil {
		return d.Call.of(cause)
	}
	return cause
}

// detail is what Describe puts into a failure. At most one of the pointers after Call is set;
// Text says what none of them can.
type detail struct {
	Call     *callDetail    `json:",omitempty"`
	Timeout  *TimeoutError  `json:",omitempty"`
	Mismatch *MismatchError `json:",omitempty"`
	Lost     *lostDetail    `json:",omitempty"`
	Usage    *UsageError    `json:",omitempty"` // the error, or one within it, that Text says
	By       *int           `json:",omitempty"` // who aborted, if not the reporter
	Text     string
	Kind     string `json:",omitempty"` // of sentinels, where Text stands for an error of that
}

type callDetail struct {
	Rank  int
	Group string `json:",omitempty"`
	Call  Fingerprint
	Name  string `json:",omitempty"`
}

func (c *callDetail) of(cause error) error {
	return &CallError{Rank: c.Rank, Group: c.Group, Call: c.Call, Name: c.Name, Err: cause}
}

type lostDetail struct {
	Peer int
	Left bool   `json:",omitempty"`
	Text string `json:",omitempty"`
}

// err is the error that d describes, of what a rank reported.
func (d *detail) err(reporter int) error {
	switch {
	case d.Lost != nil:
		lost := &PeerLostError{Peer: d.Lost.Peer, Left: d.Lost.Left}
		if d.Lost.Text != "" {
			lost.Err = errors.New(d.Lost.Text)
		}
		return lost
	case d.Timeout != nil:
		return d.Timeout
	case d.Mismatch != nil:
		return d.Mismatch
	}
	why := &told{text: d.Text, kind: sentinels[d.Kind]}
	switch {
	case d.Usage != nil:
		why.kind = d.Usage
	case d.By != nil:
		reporter = *d.By
	}
	return &AbortedError{By: reporter, Err: why}
}

// sentinels are what an error may match that is told on as a text.
var sentinels = map[string]error{"timeout": ErrTimeout, "lost": ErrPeerLost}

// told is an error of another process.
type told struct {
	text string
	kind error // that it matches; may be nil
}

func (e *told) Error() string { return e.text }

func (e *told) Unwrap() error { return e.kind }

// maxDetail bounds a description, in bytes, and maxText each text in it. JSON takes up to six
// bytes for one.
const (
	maxDetail = 256 << 10
	maxText   = maxDetail / 32
)

func cut(text string) string { return text[:min(len(text), maxText)] }

// marshal leaves out what does not fit: the calls of all ranks.
func (d detail) marshal() []byte {
	b := mustMarshal(d)
	if len(b) > maxDetail && d.Mismatch != nil {
		short := *d.Mismatch
		short.All, short.Ranks = nil, nil
		d.Mismatch = &short
		b = mustMarshal(d)
	}
	return b
}

func mustMarshal(d detail) []byte {
	b, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Errorf("backend: describing a failure: %w", err)) // plain data
	}
	return b
}
