package handshake

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/jobenv"
)

// end is the state of one end of a handshake.
type end struct {
	self, peer    greeting
	private       *ecdh.PrivateKey // the private key of self's share; nil if this end never encrypts
	key           []byte
	hello, answer []byte
}

func newEnd(self Party, key []byte) end {
	e := end{self: greeting{Party: self, share: make([]byte, shareSize)}, key: key}
	if self.betweenRanks() {
		if private, err := ecdh.X25519().GenerateKey(rand.Reader); err == nil { // an error means that Go's FIPS mode forbids X25519: the method protect reports it
			e.private, e.self.share = private, private.PublicKey().Bytes()
			return e
		}
	}
	rand.Read(e.self.share)
	return e
}

// compare returns an error if the two ends must not use the connection.
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
	if e.self.Unprotected != e.peer.Unprotected {
		on, off := e.self.Process, by
		if e.peer.Unprotected {
			on, off = off, on
		}
		return fmt.Errorf("%s or %s is on in %v, and off in %v: set it on all nodes of the job, or on none", jobenv.UnprotectedVar, jobenv.InsecureVar, on, off)
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

// A Dialler is the end of a handshake that opened the connection. The caller must call its
// methods once each, in the order Hello, Prove, Finish. If one fails, the caller must close
// the connection.
type Dialler struct{ end }

// NewDialler returns the dialler's end of a handshake. self identifies this process. key may
// be empty.
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

// Finish takes the listener's last message. If another process has already connected to the
// listener with this end's rank, rival is that process; else it is nil.
func (d *Dialler) Finish(accept []byte) (rival *Process, err error) {
	given, rival, err := decodeAccept(accept)
	if err != nil {
		return nil, err
	}
	return rival, d.verify(given, byListener)
}

// Peer returns the listener. It must be called after Prove has succeeded. The listener is
// authenticated only after Finish has succeeded.
func (d *Dialler) Peer() Party { return d.peer.Party }

// A Listener is the end of a handshake that accepted the connection. The caller must call
// its methods once each, in the order Answer, Verify, Accept. If one fails, the caller must
// send the message that Refuse returns, and close the connection.
type Listener struct{ end }

// NewListener returns the listener's end of a handshake. self identifies this process. key
// may be empty.
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

// Accept returns the last message. rival, if not nil, is another process with the dialler's
// rank. The message contains it.
func (l *Listener) Accept(rival *Process) []byte {
	return encodeAccept(proof(l.key, byListener, l.hello, l.answer), rival)
}

// Refuse returns the message that rejects the dialler because of why.
func (l *Listener) Refuse(why error) []byte { return encodeRejection(l.self.Process, why) }

// Peer returns the dialler. It must be called after Answer has succeeded. The dialler is
// authenticated only after Verify has succeeded.
func (l *Listener) Peer() Party { return l.peer.Party }
