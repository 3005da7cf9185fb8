package handshake

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"errors"
)

// end is what both ends of a handshake know of it.
type end struct {
	own, peer     greeting
	key           []byte
	hello, answer []byte
}

func newEnd(own Party, key []byte) end {
	nonce := make([]byte, nonceSize)
	rand.Read(nonce)
	return end{own: greeting{Party: own, Nonce: nonce}, key: key}
}

// compare returns why these two ends may not talk.
func (e *end) compare() error {
	by := e.peer.Process
	if err := e.own.Job.Compare(e.peer.Job); err != nil {
		var differ *DifferentJobError
		if errors.As(err, &differ) {
			differ.By = by
		}
		return err
	}
	if e.own.HasSecret != e.peer.HasSecret {
		return &SecretError{Own: e.own.HasSecret, Other: e.peer.HasSecret, By: by}
	}
	return nil
}

// verify checks the other end's proof.
func (e *end) verify(given []byte, direction string) error {
	if !hmac.Equal(given, proof(e.key, direction, e.hello, e.answer)) {
		return &SecretError{Own: true, Other: true, By: e.peer.Process}
	}
	return nil
}

// A Dialler is the end of a handshake that opened the connection. Its methods are
// called once each, in the order Hello, Prove, Finish, until one fails: then the
// connection is to be closed.
type Dialler struct{ end }

// NewDialler returns a handshake of own under key, which may be empty.
func NewDialler(own Party, key []byte) *Dialler { return &Dialler{newEnd(own, key)} }

// Hello returns the first message.
func (d *Dialler) Hello() []byte {
	d.hello = message{Greeting: &d.own}.encode()
	return d.hello
}

// Prove takes the listener's answer and returns the third message. Its error may be a
// [*RefusedError], a [*DifferentJobError] or a [*SecretError].
func (d *Dialler) Prove(answer []byte) (proving []byte, err error) {
	g, err := greet(answer, opposite[d.own.Role])
	if err != nil {
		return nil, err
	}
	d.peer, d.answer = *g, bytes.Clone(answer)
	if err := d.compare(); err != nil {
		return nil, err
	}
	return message{Proof: proof(d.key, byDialler, d.hello, d.answer)}.encode(), nil
}

// Finish takes the listener's last message. rival, if not nil, is another process that
// the listener knows under this end's rank.
func (d *Dialler) Finish(accept []byte) (rival *Process, err error) {
	m, err := decode(accept)
	switch {
	case err != nil:
		return nil, err
	case m.Refusal != nil:
		return nil, m.Refusal.err()
	}
	if m.Rival != nil {
		bounded := m.Rival.bounded()
		rival = &bounded
	}
	return rival, d.verify(m.Proof, byListener)
}

// Peer returns the listener, once Prove has succeeded. It is not proven before Finish
// has succeeded.
func (d *Dialler) Peer() Party { return d.peer.Party }

// A Listener is the end of a handshake that accepted the connection. Its methods are
// called once each, in the order Answer, Verify, Accept, until one fails: then the
// dialler is to be sent Refuse's message, and the connection to be closed.
type Listener struct{ end }

// NewListener returns a handshake of own under key, which may be empty.
func NewListener(own Party, key []byte) *Listener { return &Listener{newEnd(own, key)} }

// Answer takes the dialler's hello and returns the second message. Its error may be a
// [*DifferentJobError] or a [*SecretError].
func (l *Listener) Answer(hello []byte) (answer []byte, err error) {
	g, err := greet(hello, opposite[l.own.Role])
	if err != nil {
		return nil, err
	}
	l.peer, l.hello = *g, bytes.Clone(hello)
	if err := l.compare(); err != nil {
		return nil, err
	}
	l.answer = message{Greeting: &l.own}.encode()
	return l.answer, nil
}

// Verify takes the dialler's proof.
func (l *Listener) Verify(proving []byte) error {
	m, err := decode(proving)
	if err != nil {
		return err
	}
	return l.verify(m.Proof, byDialler)
}

// Accept returns the last message. It tells the dialler of rival, if that is not nil:
// another process that bears the dialler's rank.
func (l *Listener) Accept(rival *Process) []byte {
	return message{Proof: proof(l.key, byListener, l.hello, l.answer), Rival: rival}.encode()
}

// Refuse returns the message that ends the handshake with why, as the dialler is to see
// it.
func (l *Listener) Refuse(why error) []byte {
	r := &refusal{By: l.own.Process}
	var differ *DifferentJobError
	var secret *SecretError
	switch {
	case errors.As(why, &differ):
		r.Different = &DifferentJobError{What: differ.What, Own: differ.Other, Other: differ.Own}
	case errors.As(why, &secret):
		r.Secret = &SecretError{Own: secret.Other, Other: secret.Own}
	default:
		r.Text = short(why.Error())
	}
	return message{Refusal: r}.encode()
}

// Peer returns the dialler, once Answer has succeeded. It is not proven before Verify
// has succeeded.
func (l *Listener) Peer() Party { return l.peer.Party }
