package handshake

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// MaxMessage bounds the bytes of one message.
const MaxMessage = 6 << 10

// magic begins every message.
const magic = "goddp/h2"

// A Role is what an end of a connection is there for.
type Role string

const (
	StoreClient  Role = "store client"
	StoreServer  Role = "store server"
	PeerDialler  Role = "peer dialler"
	PeerListener Role = "peer listener"
)

// opposite is the role that the other end of a connection must have.
var opposite = map[Role]Role{
	StoreClient: StoreServer, StoreServer: StoreClient,
	PeerDialler: PeerListener, PeerListener: PeerDialler,
}

// A Party is one end of a connection, as the other end is to see it.
type Party struct {
	Role      Role
	Job       Job
	HasSecret bool // whether the process has the job's secret, and wants proof of it
	Rank      int  // -1: none
	Lane      int  // which of the connections between two ranks
	Process   Process
	Server    string // of a StoreServer: random, tells one server from the next at its address
}

const nonceSize = 32

// greeting is the body of a hello, and of an answer.
type greeting struct {
	Party
	Nonce []byte
}

// refusal is the body of a listener's message that ends the handshake: one of the errors
// as the dialler is to see it, or a text.
type refusal struct {
	By        Process
	Different *DifferentJobError `json:",omitempty"`
	Secret    *SecretError       `json:",omitempty"`
	Text      string             `json:",omitempty"`
}

// message is any of the messages: one field is set.
type message struct {
	Greeting *greeting `json:",omitempty"`
	Proof    []byte    `json:",omitempty"`
	Refusal  *refusal  `json:",omitempty"`
	Rival    *Process  `json:",omitempty"` // beside an accept's proof
}

func (m message) encode() []byte {
	b := bytes.NewBufferString(magic)
	to := json.NewEncoder(b)
	to.SetEscapeHTML(false) // arguments would grow to six times their size
	if err := to.Encode(m); err != nil {
		panic(err) // plain data
	}
	return b.Bytes()
}

func decode(b []byte) (m message, err error) {
	if len(b) > MaxMessage {
		return m, fmt.Errorf("handshake of %d bytes, at most %d", len(b), MaxMessage)
	}
	body, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		return m, fmt.Errorf("no handshake of this version (%q): it begins with %.16q", magic, b)
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("handshake: %w", err)
	}
	return m, nil
}

// greet decodes a message that must be a greeting from an end with a role.
func greet(b []byte, want Role) (*greeting, error) {
	m, err := decode(b)
	switch {
	case err != nil:
		return nil, err
	case m.Refusal != nil:
		return nil, m.Refusal.err()
	case m.Greeting == nil:
		return nil, errors.New("handshake without a greeting")
	case len(m.Greeting.Nonce) != nonceSize:
		return nil, fmt.Errorf("handshake with a nonce of %d bytes, want %d", len(m.Greeting.Nonce), nonceSize)
	case m.Greeting.Role != want:
		return nil, fmt.Errorf("handshake with a %.32q, want a %q", m.Greeting.Role, want)
	}
	return m.Greeting, m.Greeting.check()
}

// check bounds what a greeting says.
func (g *greeting) check() error {
	for _, text := range []string{g.Job.ID, g.Job.Program, g.Job.Args, g.Process.ID, g.Process.Host, g.Server} {
		if len(text) > maxText {
			return fmt.Errorf("handshake with a text of %d bytes, at most %d", len(text), maxText)
		}
	}
	const maxRank = 1 << 30
	if g.Rank < -1 || g.Rank > maxRank || g.Lane < 0 || g.Lane > maxRank || g.Job.World < 0 {
		return fmt.Errorf("handshake of rank %d of %d, lane %d", g.Rank, g.Job.World, g.Lane)
	}
	return nil
}

// err is the error of the end that was refused.
func (r *refusal) err() error {
	r.By = r.By.bounded()
	switch {
	case r.Different != nil:
		d := r.Different
		return &DifferentJobError{What: short(d.What), Own: short(d.Own), Other: short(d.Other), By: r.By}
	case r.Secret != nil:
		return &SecretError{Own: r.Secret.Own, Other: r.Secret.Other, By: r.By}
	}
	return &RefusedError{By: r.By, Text: short(r.Text)}
}

// A RefusedError says that the other end refused the connection, and why.
type RefusedError struct {
	By   Process
	Text string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%v refuses: %s", e.By, e.Text) }

// A SecretError says that the two ends of a connection do not have one secret.
type SecretError struct {
	Own, Other bool // who has a secret; both: they differ
	By         Process
}

func (e *SecretError) Error() string {
	const give = "give all processes of the job the same file in " + TokenFileVar
	switch {
	case e.Own && e.Other:
		return fmt.Sprintf("%v has another secret than this process: %s", e.By, give)
	case e.Own:
		return fmt.Sprintf("%v has no secret, and this process has one: %s", e.By, give)
	}
	return fmt.Sprintf("%v has a secret, and this process has none: %s", e.By, give)
}

// proof is what an end with the key proves of a hello and its answer. The direction
// tells the dialler's proof from the listener's.
func proof(key []byte, direction string, hello, answer []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(magic + " " + direction + " "))
	for _, m := range [][]byte{hello, answer} {
		sum := sha256.Sum256(m)
		h.Write(sum[:])
	}
	return h.Sum(nil)
}

const (
	byDialler  = "dialler"
	byListener = "listener"
)
