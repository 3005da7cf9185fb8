package handshake

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"errors"
)

// end is what both ends of a handshake know of it.
type end struct {
	self, peer    greeting
	key           []byte
	hello, answer []byte
}

func newEnd(self Party, key []byte) end {
	nonce := make([]byte, nonceSize)
	rand.Read(nonce)
	return end{self: greeting{Party: self, nonce: nonce}, key: key}
}

// compare returns why these two ends may not talk.
func (e *end) compare() error {
	by := e.peer.Process
	if err := e.self.Job.Compare(e.peer.Job); err != nil {
		var differ *DifferentJobError
		if errors.As(err, &differ) {
			differ.By = by
		}
		return err
	}
	if e.self.HasSecret != e.peer.HasSecret {
		return &SecretError{Own: e.self.HasSecret, Other: e.peer.HasSecret, By: by}
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
func NewDialler(self Party, key []byte) *Dialler { return &Dialler{newEnd(self, key)} }

// Hello returns the first message.
func (d *Dialler) Hello() []byte {
	d.hello = d.self.encode()
	return d.hello
}

// Prove takes the listener's answer and returns the third message. Its error may be a
// [*RefusedError], a [*DifferentJobError] or a [*SecretError].
func (d *Dialler) Prove(answer []byte) (proving []byte, err error) {
	if d.peer, err = decodeGreeting(answer, opposite[d.self.Role]); err != nil {
		return nil, err
	}
	d.answer = bytes.Clone(answer)
	if err := d.compare(); err != nil {
		return nil, err
	}
	return encodeProof(proof(d.key, byDialler, d.hello, d.answer)), nil
}

// Finish takes the listener's last message. rival, if not nil, is another process that
// the listener knows under this end's rank.
func (d *Dialler) Finish(accept []byte) (rival *Process, err error) {
	given, rival, err := decodeAccept(accept)
	if err != nil {
		return nil, err
	}
	return rival, d.verify(given, byListener)
}

// Peer returns the listener, once Prove has succeeded. It is not proven before Finish
// has succeeded.
func (d *Dialler) Peer() Party { return d.peer.Party }

// A Listener is the end of a handshake that accepted the connection. Its methods are
// called once each, in the order Answer, Verify, Accept, until one fails: then the
// dialler is to be sent Refuse's message, and the connection to be closed.
type Listener struct{ end }

// NewListener returns a handshake of own under key, which may be empty.
func NewListener(self Party, key []byte) *Listener { return &Listener{newEnd(self, key)} }

// Answer takes the dialler's hello and returns the second message. Its error may be a
// [*DifferentJobError] or a [*SecretError].
func (l *Listener) Answer(hello []byte) (answer []byte, err error) {
	if l.peer, err = decodeGreeting(hello, opposite[l.self.Role]); err != nil {
		return nil, err
	}
	l.hello = bytes.Clone(hello)
	if err := l.compare(); err != nil {
		return nil, err
	}
	l.answer = l.self.encode()
	return l.answer, nil
}

// Verify takes the dialler's proof.
func (l *Listener) Verify(proving []byte) error {
	given, err := decodeProof(proving)
	if err != nil {
		return err
	}
	return l.verify(given, byDialler)
}

// Accept returns the last message. It tells the dialler of rival, if that is not nil:
// another process that bears the dialler's rank.
func (l *Listener) Accept(rival *Process) []byte {
	return encodeAccept(proof(l.key, byListener, l.hello, l.answer), rival)
}

// Refuse returns the message that ends the handshake with why, as the dialler is to see
// it.
func (l *Listener) Refuse(why error) []byte { return encodeRejection(l.self.Process, why) }

// Peer returns the dialler, once Answer has succeeded. It is not proven before Verify
// has succeeded.
func (l *Listener) Peer() Party { return l.peer.Party }
