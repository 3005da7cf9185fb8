package store

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
)

// golden holds frames of both dialects. The frames of 1.x were captured from PyTorch
// 1.13; those of 2.x follow its sources. "" means that the frame does not exist in the
// dialect.
var golden = []struct {
	req    request
	v1, v2 string
	rep    reply
	reply  string
}{
	{
		req: request{op: opValidate, number: validateMagic},
		v2:  "00 cef7853c",
	}, {
		req: request{op: opSet, keys: []string{"/k"}, values: [][]byte{[]byte("v")}},
		v1:  "00 0200000000000000 2f6b 0100000000000000 76",
		v2:  "01 0200000000000000 2f6b 0100000000000000 76",
	}, {
		req:   request{op: opCompareSet, keys: []string{"/cs"}, values: [][]byte{[]byte("a"), {}}},
		v1:    "01 0300000000000000 2f6373 0100000000000000 61 0000000000000000",
		v2:    "02 0300000000000000 2f6373 0100000000000000 61 0000000000000000",
		rep:   reply{values: [][]byte{[]byte("b")}},
		reply: "0100000000000000 62",
	}, {
		req:   request{op: opGet, keys: []string{"/k"}},
		v1:    "02 0200000000000000 2f6b",
		v2:    "03 0200000000000000 2f6b",
		rep:   reply{values: [][]byte{[]byte("v")}},
		reply: "0100000000000000 76",
	}, {
		req:   request{op: opAdd, keys: []string{"/cnt"}, number: -2},
		v1:    "03 0400000000000000 2f636e74 feffffffffffffff",
		v2:    "04 0400000000000000 2f636e74 feffffffffffffff",
		rep:   reply{number: -1},
		reply: "ffffffffffffffff",
	}, {
		req:   request{op: opCheck, keys: []string{"/k"}},
		v1:    "04 0100000000000000 0200000000000000 2f6b",
		v2:    "05 0100000000000000 0200000000000000 2f6b",
		rep:   reply{number: checkNotReady},
		reply: "01",
	}, {
		req:   request{op: opWait, keys: []string{"/k", "/cnt"}},
		v1:    "05 0200000000000000 0200000000000000 2f6b 0400000000000000 2f636e74",
		v2:    "06 0200000000000000 0200000000000000 2f6b 0400000000000000 2f636e74",
		rep:   reply{number: stopWaiting},
		reply: "00",
	}, {
		req:   request{op: opNumKeys},
		v1:    "06",
		v2:    "07",
		rep:   reply{number: 3},
		reply: "0300000000000000",
	}, {
		req:   request{op: opDelete, keys: []string{"/k"}},
		v1:    "08 0200000000000000 2f6b",
		v2:    "08 0200000000000000 2f6b",
		rep:   reply{number: 1},
		reply: "0100000000000000",
	}, {
		req: request{op: opAppend, keys: []string{"/k"}, values: [][]byte{[]byte("v")}},
		v1:  "09 0200000000000000 2f6b 0100000000000000 76",
		v2:  "09 0200000000000000 2f6b 0100000000000000 76",
	}, {
		req:   request{op: opMultiGet, keys: []string{"/a", "/b"}},
		v1:    "0a 0200000000000000 0200000000000000 2f61 0200000000000000 2f62",
		v2:    "0a 0200000000000000 0200000000000000 2f61 0200000000000000 2f62",
		rep:   reply{values: [][]byte{{}, []byte("v")}},
		reply: "0000000000000000 0100000000000000 76",
	}, {
		req: request{op: opMultiSet, keys: []string{"/a", "/b"}, values: [][]byte{[]byte("v"), {}}},
		v1:  "0b 0200000000000000 0200000000000000 2f61 0100000000000000 76 0200000000000000 2f62 0000000000000000",
		v2:  "0b 0200000000000000 0200000000000000 2f61 0100000000000000 76 0200000000000000 2f62 0000000000000000",
	}, {
		req:   request{op: opCancelWait},
		v1:    "0c",
		v2:    "0c",
		rep:   reply{number: waitCanceled},
		reply: "01",
	}, {
		req:   request{op: opPing, number: 0xfedcba98},
		v2:    "0d 98badcfe",
		rep:   reply{number: 0xfedcba98},
		reply: "98badcfe",
	},
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encode(f func(w *bufio.Writer)) []byte {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	f(w)
	w.Flush()
	return b.Bytes()
}

// decode returns a decoder of data, and a count of the bytes that it reserved.
func decode(data []byte, limits Limits) (*decoder, *int) {
	reserved := new(int)
	return &decoder{
		r:      bufio.NewReader(bytes.NewReader(data)),
		limits: limits.withDefaults(),
		reserve: func(n int) error {
			*reserved += n
			return nil
		},
	}, reserved
}

func TestGoldenFrames(t *testing.T) {
	for _, g := range golden {
		for d, want := range map[dialect]string{dialect1: g.v1, dialect2: g.v2} {
			if want == "" {
				continue
			}
			frame := unhex(t, want)
			if got := encode(func(w *bufio.Writer) { writeRequest(w, d, g.req) }); !bytes.Equal(got, frame) {
				t.Errorf("%v in dialect %d:\ngot  %x\nwant %x", g.req.op, d, got, frame)
			}
			dec, _ := decode(frame, Limits{})
			if got, err := dec.request(d); err != nil || !reflect.DeepEqual(got, g.req) {
				t.Errorf("%x:\ngot  %+v, %v\nwant %+v", frame, got, err, g.req)
			}
			// If the frame is cut off anywhere, the decoder returns an error. The error
			// is io.EOF only if no byte arrived.
			for n := range frame {
				dec, _ := decode(frame[:n], Limits{})
				_, err := dec.request(d)
				if err == nil || errors.Is(err, io.EOF) != (n == 0) {
					t.Errorf("%x cut to %d bytes: %v", frame, n, err)
				}
			}
		}
		frame := unhex(t, g.reply)
		if got := encode(func(w *bufio.Writer) { writeReply(w, g.req.op, g.rep) }); !bytes.Equal(got, frame) {
			t.Errorf("reply to %v: got %x, want %x", g.req.op, got, frame)
		}
		dec, _ := decode(frame, Limits{})
		if got, err := dec.reply(g.req); err != nil || !reflect.DeepEqual(got, g.rep) {
			t.Errorf("reply %x: got %+v, %v; want %+v", frame, got, err, g.rep)
		}
	}
}

func TestRefusedFrames(t *testing.T) {
	limits := Limits{KeyBytes: 4, ValueBytes: 8, RequestKeys: 2, RequestBytes: 40}
	const set1 = "00 0100000000000000 6b "
	for _, c := range []struct {
		d            dialect
		frame, error string
	}{
		{dialect1, "07", "WATCH_KEY is not supported"},
		{dialect1, "0d 00000000", "unknown request code 13"},
		{dialect2, "0e", "unknown request code 14"},
		{dialect2, "47", "unknown request code 71"},
		{dialect1, "00 0500000000000000 6b6b6b6b6b", "SET: limit exceeded: 5 bytes in a key, at most 4"},
		{dialect1, "00 ffffffffffffffff", "SET: limit exceeded: 18446744073709551615 bytes in a key, at most 4"},
		{dialect1, set1 + "0900000000000000", "SET: limit exceeded: 9 bytes in a value, at most 8"},
		{dialect1, set1 + "0000000000000080", "SET: limit exceeded: 9223372036854775808 bytes in a value, at most 8"},
		{dialect1, "04 0300000000000000", "CHECK: limit exceeded: 3 keys in a request, at most 2"},
		{dialect2, "0b 0200000000000000 0100000000000000 61 0800000000000000 7676767676767676 0100000000000000 62 0100000000000000 76",
			"MULTI_SET: limit exceeded: 43 bytes in a frame, at most 40"},
	} {
		dec, _ := decode(unhex(t, c.frame), limits)
		if _, err := dec.request(c.d); fmt.Sprint(err) != c.error {
			t.Errorf("%s: got %v, want %s", c.frame, err, c.error)
		}
	}
}

// memoryBound returns the most memory that a decoder may reserve for n bytes of input. A
// short key or value costs its header, twice while the list grows, and an allocation. For
// a long one the decoder reserves at most twice the bytes that have arrived.
func memoryBound(n int) int { return 8*n + 4*firstStep }

// memoryOf returns the memory of a frame's keys and values.
func memoryOf(keys []string, values [][]byte) int {
	total := cap(keys)*stringHeader + cap(values)*sliceHeader
	for _, k := range keys {
		total += len(k)
	}
	for _, v := range values {
		total += cap(v)
	}
	return total
}

// A parked wait holds memory as long as its client likes. Most of that is the list of its
// keys, of which the input holds only the lengths.
func TestWaitLimit(t *testing.T) {
	keys := make([]string, 131071)
	for _, op := range []opcode{opWait, opCheck} {
		frame := encode(func(w *bufio.Writer) { writeRequest(w, dialect2, request{op: op, keys: keys}) })
		dec, reserved := decode(frame, Limits{})
		_, err := dec.request(dialect2)
		if want := op == opWait; errors.Is(err, ErrLimit) != want {
			t.Errorf("%v of %d empty keys: %v", op, len(keys), err)
		}
		if op == opWait && *reserved > 1<<20 {
			t.Errorf("%d bytes reserved", *reserved)
		}
	}
}

// FuzzRequests decodes a stream of requests. A request that decodes must encode to the
// same bytes and respect the limits. The decoder must have reserved the memory that the
// request takes, and no more than the bytes that arrived justify.
func FuzzRequests(f *testing.F) {
	for _, g := range golden {
		for i, frame := range []string{g.v1, g.v2} {
			f.Add(i == 0, unhex(f, frame))
		}
	}
	f.Add(false, unhex(f, "00 cef7853c 0d 01000000 06 0100000000000000 0100000000000000 61 0c"))
	f.Add(true, unhex(f, "00 ffffffffffffffff"))
	f.Add(true, unhex(f, "05 0000010000000000"))
	f.Add(false, unhex(f, "01 0100000000000000 6b 0000100000000000 76")) // a value of a mebibyte, of which one byte arrives
	limits := Limits{KeyBytes: 1 << 10, ValueBytes: 1 << 20, RequestKeys: 64, RequestBytes: 1 << 21}
	f.Fuzz(func(t *testing.T, legacy bool, data []byte) {
		d := dialect2
		if legacy {
			d = dialect1
		}
		dec, reserved := decode(data, limits)
		for rest := data; ; {
			*reserved = 0
			req, err := dec.request(d)
			if *reserved > memoryBound(len(rest)) {
				t.Fatalf("reserved %d bytes for %d", *reserved, len(rest))
			}
			if cost := memoryOf(req.keys, req.values); err == nil && *reserved < cost {
				t.Fatalf("reserved %d bytes for a request that takes %d", *reserved, cost)
			}
			if err != nil {
				if err == io.EOF && len(rest) > 0 {
					t.Fatalf("end of stream with %d bytes left", len(rest))
				}
				return
			}
			if err := limits.withDefaults().check(req.keys, req.values); err != nil {
				t.Fatal(err)
			}
			frame := encode(func(w *bufio.Writer) { writeRequest(w, d, req) })
			if !bytes.HasPrefix(rest, frame) {
				t.Fatalf("%+v encodes to %x, came from %x", req, frame, rest[:min(len(rest), len(frame))])
			}
			rest = rest[len(frame):]
		}
	})
}

// FuzzReply does the same for the replies that a client reads.
func FuzzReply(f *testing.F) {
	for _, g := range golden {
		f.Add(byte(g.req.op), byte(len(g.req.keys)), unhex(f, g.reply))
	}
	f.Fuzz(func(t *testing.T, op, keys byte, data []byte) {
		req := request{op: opcode(op) % opcode(len(layouts)), keys: make([]string, keys)}
		dec, reserved := decode(data, Limits{})
		rep, err := dec.reply(req)
		if *reserved > memoryBound(len(data)) {
			t.Fatalf("reserved %d bytes for %d", *reserved, len(data))
		}
		if err != nil {
			return
		}
		if cost := memoryOf(nil, rep.values); *reserved < cost {
			t.Fatalf("reserved %d bytes for a reply that takes %d", *reserved, cost)
		}
		if frame := encode(func(w *bufio.Writer) { writeReply(w, req.op, rep) }); !bytes.HasPrefix(data, frame) {
			t.Fatalf("%+v encodes to %x, came from %x", rep, frame, data)
		}
	})
}
