package handshake

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/goddp/goddp/internal/jobenv"
)

// MaxMessage is the largest size of a message in bytes.
const MaxMessage = 6 << 10

// magic begins every message.
const magic = "goddp/h4"

// A Role says what an end of a connection does.
type Role string

const (
	StoreClient  Role = "store client"
	StoreServer  Role = "store server"
	PeerDialler  Role = "peer dialler"
	PeerListener Role = "peer listener"
	Rank         Role = "rank"
	Coordinator  Role = "coordinator"
)

// opposite maps a role to the role that the other end of the connection must have.
var opposite = map[Role]Role{
	StoreClient: StoreServer, StoreServer: StoreClient,
	PeerDialler: PeerListener, PeerListener: PeerDialler,
	Rank: Coordinator, Coordinator: Rank,
}

// A Party describes one end of a connection to the other end.
type Party struct {
	Role      Role
	Job       Job
	HasSecret bool // the process has the job's secret, and requires a proof of it
	Rank      int  // -1 for a process without a rank
	Process   Process
	// Of a connection between two ranks:
	ConnIndex   int    // index of the connection among the connections between the two ranks
	Machine     string // names the host, unlike every other host of the job; "" if no name is known
	Unprotected bool   // data between hosts is to be neither encrypted nor authenticated
	Server      string // for a StoreServer, a random id; a later server at the same address has another id
}

// betweenRanks reports whether the connection is one between two ranks.
func (p *Party) betweenRanks() bool { return p.Role == PeerDialler || p.Role == PeerListener }

const shareSize = 32

// kind is a kind of message.
type kind byte

const (
	kindGreeting  kind = iota + 1 // a hello or an answer
	kindProof                     // the dialler's proof
	kindAccept                    // the listener's proof
	kindRejection                 // a rejection, in place of an answer or an accept
	kindDifferent                 // a rejection with a DifferentJobError
	kindSecret                    // a rejection with a SecretError
)

// greeting is a hello or an answer.
type greeting struct {
	Party
	share []byte // an X25519 public key made for this connection, which also makes each proof unique
}

func (g *greeting) encode() []byte {
	e := newEncoder(kindGreeting)
	e.text(string(g.Role))
	e.text(g.Job.ID)
	e.text(g.Job.Program)
	e.text(g.Job.Args)
	e.number(g.Job.World)
	e.flag(g.HasSecret)
	e.number(g.Rank)
	e.number(g.ConnIndex)
	e.process(g.Process)
	e.text(short(g.Machine))
	e.flag(g.Unprotected)
	e.text(g.Server)
	e.bytes(g.share)
	return e
}

// decodeGreeting decodes a hello or an answer. The sender must have the role want.
func decodeGreeting(b []byte, want Role) (g greeting, err error) {
	k, d, err := newDecoder(b)
	if err != nil {
		return g, err
	}
	if k != kindGreeting {
		return g, d.rejection(k)
	}
	g.Role = Role(d.text())
	g.Job = Job{ID: d.text(), Program: d.text(), Args: d.text(), World: d.number()}
	g.HasSecret = d.flag()
	g.Rank, g.ConnIndex = d.number(), d.number()
	g.Process = d.process()
	g.Machine = d.text()
	g.Unprotected = d.flag()
	g.Server = d.text()
	g.share = d.bytes()
	switch err := d.end(); {
	case err != nil:
		return g, err
	case g.Role != want:
		return g, fmt.Errorf("handshake with a process of role %.32q, want role %q", g.Role, want)
	case len(g.share) != shareSize:
		return g, fmt.Errorf("invalid handshake: the peer's key share has %d bytes, want %d", len(g.share), shareSize)
	case g.Rank < -1 || g.ConnIndex < 0 || g.Job.World < 0:
		return g, fmt.Errorf("invalid handshake: rank %d of %d ranks, connection %d", g.Rank, g.Job.World, g.ConnIndex)
	}
	return g, nil
}

func encodeProof(proof []byte) []byte {
	e := newEncoder(kindProof)
	e.bytes(proof)
	return e
}

func decodeProof(b []byte) (proof []byte, err error) {
	k, d, err := newDecoder(b)
	if err != nil {
		return nil, err
	}
	if k != kindProof {
		return nil, d.rejection(k)
	}
	proof = d.bytes()
	return proof, d.end()
}

func encodeAccept(proof []byte, rival *Process) []byte {
	e := newEncoder(kindAccept)
	e.bytes(proof)
	if rival != nil {
		e.process(*rival)
	}
	return e
}

func decodeAccept(b []byte) (proof []byte, rival *Process, err error) {
	k, d, err := newDecoder(b)
	if err != nil {
		return nil, nil, err
	}
	if k != kindAccept {
		return nil, nil, d.rejection(k)
	}
	proof = d.bytes()
	if len(d.rest) > 0 {
		p := d.process()
		rival = &p
	}
	return proof, rival, d.end()
}

// encodeRejection returns a rejection by process by, because of why.
func encodeRejection(by Process, why error) []byte {
	var differ *DifferentJobError
	var secret *SecretError
	switch {
	case errors.As(why, &differ):
		e := newEncoder(kindDifferent)
		e.process(by)
		e.text(short(differ.What))
		e.text(short(differ.Other))
		e.text(short(differ.Own))
		return e
	case errors.As(why, &secret):
		e := newEncoder(kindSecret)
		e.process(by)
		e.flag(secret.Other)
		e.flag(secret.Own)
		return e
	}
	e := newEncoder(kindRejection)
	e.process(by)
	e.text(short(why.Error()))
	return e
}

// rejection decodes the rest of a message of kind k. It returns the error that the rejection
// holds, or nil if k is not a kind of rejection.
func (d *decoder) rejection(k kind) error {
	var err error
	switch by := d.process(); k {
	case kindDifferent:
		err = &DifferentJobError{What: d.text(), Own: d.text(), Other: d.text(), By: by}
	case kindSecret:
		err = &SecretError{Own: d.flag(), Other: d.flag(), By: by}
	case kindRejection:
		err = &RefusedError{By: by, Text: d.text()}
	default:
		return fmt.Errorf("handshake with a message of unknown kind %d", k)
	}
	if bad := d.end(); bad != nil {
		return bad
	}
	return err
}

// A RefusedError says why the other end rejected the connection.
type RefusedError struct {
	By   Process
	Text string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v refused the connection: %s", e.By, e.Text)
}

// A SecretError says that the two ends of a connection do not have the same secret.
type SecretError struct {
	Own, Other bool // this end, and the other end, have a secret; if both have one, they differ
	By         Process
}

func (e *SecretError) Error() string {
	const give = "give all processes of the job the same secret by " + jobenv.TokenFileVar + " or " + jobenv.TokenVar
	switch {
	case e.Own && e.Other:
		return fmt.Sprintf("%v has another secret than this process: %s", e.By, give)
	case e.Own:
		return fmt.Sprintf("%v has no secret, and this process has one: %s", e.By, give)
	}
	return fmt.Sprintf("%v has a secret, and this process has none: %s", e.By, give)
}

// proof returns the proof of an end that has key, for a hello and an answer. direction
// distinguishes the dialler's proof, the listener's proof, and the salt of the data keys.
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
	forData    = "data" // direction for the salt of the data keys; a proof for it is never sent
)
