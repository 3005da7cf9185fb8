package backend

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/coordinator"
)

// OfCall returns err as the error of this rank's call c in the group of control.
func OfCall(control *coordinator.Group, c *Call, err error) *failure.CallError {
	return &failure.CallError{Rank: control.Rank(), Group: control.Name, Call: c.Fingerprint().InJob(control.Members).String(), Name: c.Name, Err: err}
}

// Describe encodes the cause of a failure for the coordinator, which passes it on to the other
// ranks. They decode it with [Cause].
func Describe(cause error) *coordinator.Failure {
	d := detail{Text: truncate(cause.Error())}
	var call *failure.CallError
	if errors.As(cause, &call) {
		d.Call = &callDetail{Rank: call.Rank, Group: call.Group, Call: truncate(call.Call), Name: truncate(call.Name)}
		d.Text = truncate(call.Err.Error())
	}
	var lost *failure.PeerLostError
	var aborted *failure.AbortedError
	switch {
	case errors.As(cause, &aborted):
		d.By, d.Text = &aborted.By, truncate(aborted.Err.Error())
	case errors.As(cause, &lost):
		d.Lost = &lostDetail{Peer: lost.Peer, Left: lost.Left}
		if lost.Err != nil {
			d.Lost.Text = truncate(lost.Err.Error())
		}
	case errors.As(cause, &d.Timeout):
		timeout := *d.Timeout
		timeout.Diagnosis = truncate(timeout.Diagnosis)
		d.Timeout = &timeout
	case errors.As(cause, &d.Mismatch), errors.As(cause, &d.Usage):
	}
	switch {
	case errors.Is(cause, failure.ErrPeerLost):
		d.Kind = "lost"
	case errors.Is(cause, failure.ErrTimeout):
		d.Kind = "timeout"
	}
	return &coordinator.Failure{Text: truncate(cause.Error()), Detail: d.marshal()}
}

// Cause decodes a failure that the coordinator passed on: it returns why the group broke, for ranks
// that did not report the failure themselves. The error's rank numbers are those of the job.
func Cause(f *coordinator.Failure) error {
	switch f.Kind {
	case coordinator.Lost:
		return &failure.PeerLostError{Peer: f.Ranks[0]}
	case coordinator.Departed:
		return &failure.PeerLostError{Peer: f.Ranks[0], Left: true}
	case coordinator.Unreachable:
		return &remoteError{f.Text, failure.ErrPeerLost}
	case coordinator.Reported:
	default:
		return &remoteError{f.Error(), failure.ErrAborted}
	}
	var d detail
	if err := json.Unmarshal(f.Detail, &d); err != nil {
		return &failure.AbortedError{By: f.Reporter, Err: &remoteError{text: f.Text}}
	}
	cause := d.err(f.Reporter)
	if d.Call != nil {
		return d.Call.wrap(cause)
	}
	return cause
}

// detail is the JSON in a coordinator.Failure. At most one of the pointers after Call is set. Text
// is the message of any other error.
type detail struct {
	Call     *callDetail            `json:",omitempty"`
	Timeout  *failure.TimeoutError  `json:",omitempty"`
	Mismatch *failure.MismatchError `json:",omitempty"`
	Lost     *lostDetail            `json:",omitempty"`
	Usage    *failure.UsageError    `json:",omitempty"` // set if the error is, or wraps, a failure.UsageError; Text is the message
	By       *int                   `json:",omitempty"` // the rank that aborted, if it is not the reporter
	Text     string
	Kind     string `json:",omitempty"` // key in sentinels: the sentinel that the error matches
}

type callDetail struct {
	Rank  int
	Group string `json:",omitempty"`
	Call  string
	Name  string `json:",omitempty"`
}

func (c *callDetail) wrap(cause error) error {
	return &failure.CallError{Rank: c.Rank, Group: c.Group, Call: c.Call, Name: c.Name, Err: cause}
}

type lostDetail struct {
	Peer int
	Left bool   `json:",omitempty"`
	Text string `json:",omitempty"`
}

// err returns the error that d describes. reporter is the rank that reported it.
func (d *detail) err(reporter int) error {
	switch {
	case d.Lost != nil:
		lost := &failure.PeerLostError{Peer: d.Lost.Peer, Left: d.Lost.Left}
		if d.Lost.Text != "" {
			lost.Err = errors.New(d.Lost.Text)
		}
		return lost
	case d.Timeout != nil:
		return d.Timeout
	case d.Mismatch != nil:
		return d.Mismatch
	}
	why := &remoteError{text: d.Text, kind: sentinels[d.Kind]}
	switch {
	case d.Usage != nil:
		why.kind = d.Usage
	case d.By != nil:
		reporter = *d.By
	}
	return &failure.AbortedError{By: reporter, Err: why}
}

// sentinels are the errors that a remoteError can match, by detail.Kind.
var sentinels = map[string]error{"timeout": failure.ErrTimeout, "lost": failure.ErrPeerLost}

// remoteError is an error of another process: its text, and optionally an error that it matches.
type remoteError struct {
	text string
	kind error // the error that it matches; may be nil
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() error { return e.kind }

// maxDetail bounds an encoded detail, in bytes, and maxText each text in it. JSON takes up to six
// bytes to encode one byte of text.
const (
	maxDetail = 256 << 10
	maxText   = maxDetail / 32
)

func truncate(text string) string { return text[:min(len(text), maxText)] }

// marshal encodes d. If d does not fit into maxDetail, the calls of all ranks are left out.
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
		panic(fmt.Errorf("backend: describing a failure: %w", err)) // cannot happen: detail is plain data
	}
	return b
}
