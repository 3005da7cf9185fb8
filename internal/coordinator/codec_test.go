package coordinator

import (
	"bytes"
	"testing"

	"github.com/goddp/goddp/internal/wire"
)

// FuzzDecode decodes arbitrary bytes as messages and gives the messages to a core of three ranks. A
// decoded message that is encoded and decoded again is unchanged. No message makes the core panic,
// or makes it send a message to a rank that does not exist.
func FuzzDecode(f *testing.F) {
	const size = 3
	add := func(messages ...Message) {
		var stream []byte
		for _, m := range messages {
			stream = append(stream, wire.Encode(&m)...)
		}
		f.Add(stream)
	}
	join := Message{Verb: Join, Session: 1, Process: "p", Options: []Option{{"a", "b"}}, Value: []byte("v")}
	half := Message{Verb: Gather, Group: "half", Key: JoinKey, Ranks: []int{0, 1}}
	add(join, join, join, half, half, Message{Verb: Leave}, Message{Verb: Leave, Alone: true, Value: []byte("5")}, Message{Verb: Ack, Number: 1})
	add(join, join, join, Message{Verb: Fail, Failure: &Failure{Text: "late", Key: "x", Late: true}, Ranks: []int{1, 2}, WantAnswers: true},
		Message{Verb: Ack, Number: 1, Value: []byte("at 5")}, Message{Verb: Fail, Failure: &Failure{}, Final: true}, Message{Verb: Alive})
	add(join, join, Message{Verb: Query, Key: LeaveKey}, Message{Verb: Failed, Values: [][]byte{{}, nil}})
	odd := Message{Verb: Gather, Group: "odd", Key: JoinKey, Ranks: []int{0, 7}}
	add(join, join, join, odd, Message{Verb: Alive}, Message{Verb: Alive}, Message{Verb: Fail, Group: "odd", Failure: &Failure{}})
	f.Add([]byte{4, 0, 0, 0, 'n', 'u', 'l', 'l'})
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := bytes.NewReader(stream)
		core := NewCore(size)
		check := func(out []Outgoing) {
			for _, o := range out {
				wire.Encode(o.Message)
				for _, r := range o.To {
					if r < Sender || r >= size {
						t.Errorf("%v to rank %d", o.Message.Verb, r)
					}
				}
			}
		}
		for from := 0; ; from = (from + 1) % size {
			m, err := decode(in)
			if err != nil {
				return
			}
			sent := wire.Encode(m)
			again, err := decode(bytes.NewReader(sent))
			if err != nil || !bytes.Equal(wire.Encode(again), sent) {
				t.Fatalf("%s is read as %+v, %v", sent, again, err)
			}
			out, err := core.Step(from, m)
			check(out)
			if err != nil {
				check(core.Lost(from, err.Error()))
			}
		}
	})
}
