package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// A dialect is one of the two versions of TCPStore's request codes.
type dialect uint8

const (
	dialect2 dialect = iota // PyTorch 2.1 and later; the first request is VALIDATE
	dialect1                // PyTorch 1.x and 2.0
)

// An opcode is the code of a kind of request in dialect 2.
type opcode uint8

const (
	opValidate opcode = iota
	opSet
	opCompareSet
	opGet
	opAdd
	opCheck
	opWait
	opNumKeys
	opDelete
	opAppend
	opMultiGet
	opMultiSet
	opCancelWait
	opPing
)

const (
	validateMagic = 0x3C85F7CE

	checkReady    = 0
	checkNotReady = 1
	stopWaiting   = 0
	waitCanceled  = 1

	// dialect1WatchKey is the code of a request that only dialect 1 has. Below it, the
	// codes of the dialects differ by one; above it, they are equal.
	dialect1WatchKey = 7
)

// A layout describes the bytes of a request and of its reply. A request holds keys, a
// number of values after each key, and then an integer. A reply holds values and an
// integer.
type layout struct {
	name        string
	keys        int  // number of keys, or counted
	values      int  // number of values after each key
	width       int  // bytes of the integer; 0 if there is none
	replyValues bool // the reply holds a value for each key
	replyWidth  int  // bytes of the reply's integer; 0 if there is none
}

const counted = -1 // the request starts with the number of its keys, as a u64

var layouts = [...]layout{
	opValidate:   {name: "VALIDATE", width: 4},
	opSet:        {name: "SET", keys: 1, values: 1},
	opCompareSet: {name: "COMPARE_SET", keys: 1, values: 2, replyValues: true},
	opGet:        {name: "GET", keys: 1, replyValues: true},
	opAdd:        {name: "ADD", keys: 1, width: 8, replyWidth: 8},
	opCheck:      {name: "CHECK", keys: counted, replyWidth: 1},
	opWait:       {name: "WAIT", keys: counted, replyWidth: 1},
	opNumKeys:    {name: "GETNUMKEYS", replyWidth: 8},
	opDelete:     {name: "DELETE_KEY", keys: 1, replyWidth: 8},
	opAppend:     {name: "APPEND", keys: 1, values: 1},
	opMultiGet:   {name: "MULTI_GET", keys: counted, replyValues: true},
	opMultiSet:   {name: "MULTI_SET", keys: counted, values: 1},
	opCancelWait: {name: "CANCEL_WAIT", replyWidth: 1},
	opPing:       {name: "PING", width: 4, replyWidth: 4},
}

func (op opcode) String() string { return layouts[op].name }

// code returns the byte for op in dialect d. VALIDATE and PING do not exist in dialect 1,
// and must not be passed with it.
func (op opcode) code(d dialect) byte {
	if d == dialect1 && op <= opNumKeys {
		return byte(op) - 1
	}
	return byte(op)
}

// opcodeOf is the inverse of code.
func opcodeOf(code byte, d dialect) (opcode, error) {
	last := byte(opPing)
	if d == dialect1 {
		switch {
		case code == dialect1WatchKey:
			return 0, errors.New("WATCH_KEY is not supported")
		case code < dialect1WatchKey:
			return opcode(code + 1), nil
		}
		last = byte(opCancelWait)
	}
	if code > last {
		return 0, fmt.Errorf("unknown request code %d", code)
	}
	return opcode(code), nil
}

// A request is one request of a client. The layout of op says which fields it uses, and how
// many keys and values it has.
type request struct {
	op     opcode
	keys   []string
	values [][]byte // the values of the first key, then the values of the second key, and so on
	number int64    // ADD's delta, PING's nonce, VALIDATE's magic number
}

// A reply answers a request.
type reply struct {
	values [][]byte
	number int64
}

// writeRequest encodes req. A write error is returned by the next Flush of w.
func writeRequest(w *bufio.Writer, d dialect, req request) {
	l := layouts[req.op]
	w.WriteByte(req.op.code(d))
	if l.keys == counted {
		writeInt(w, 8, int64(len(req.keys)))
	}
	for i, key := range req.keys {
		writeInt(w, 8, int64(len(key)))
		w.WriteString(key)
		for _, v := range req.values[i*l.values : (i+1)*l.values] {
			writeBytes(w, v)
		}
	}
	writeInt(w, l.width, req.number)
}

// writeReply encodes the reply to a request of kind op.
func writeReply(w *bufio.Writer, op opcode, rep reply) {
	for _, v := range rep.values {
		writeBytes(w, v)
	}
	writeInt(w, layouts[op].replyWidth, rep.number)
}

func writeBytes(w *bufio.Writer, b []byte) {
	writeInt(w, 8, int64(len(b)))
	w.Write(b)
}

func writeInt(w *bufio.Writer, width int, x int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(x))
	w.Write(b[:width])
}

// A decoder reads requests and replies, called frames, from untrusted peers. It checks each length
// against limits, and allocates memory only as bytes arrive, regardless of the claimed length:
// first firstStep bytes, then at most twice the bytes that have arrived.
type decoder struct {
	r      *bufio.Reader
	limits Limits
	// reserve is called before n more bytes of memory are allocated for a frame. If it
	// returns an error, the decoder returns that error.
	reserve func(n int) error

	frame   int // size of the keys and values of the current frame as sent, in bytes
	memory  int // memory that the current frame takes
	most    int // limit of memory
	scratch [8]byte
}

// firstStep is the memory that is allocated first for a key, a value or a list.
const firstStep = 4 << 10

// request reads the next request. If the stream ends before its first byte, the error is
// io.EOF itself.
func (d *decoder) request(dia dialect) (request, error) {
	code, err := d.r.ReadByte()
	if err != nil {
		return request{}, err
	}
	op, err := opcodeOf(code, dia)
	if err != nil {
		return request{}, err
	}
	d.begin()
	if op == opWait {
		d.most = d.limits.WaitBytes
	}
	req, err := d.body(op)
	if err != nil {
		return request{}, fmt.Errorf("%v: %w", op, err)
	}
	return req, nil
}

func (d *decoder) body(op opcode) (request, error) {
	l, req := layouts[op], request{op: op}
	n := uint64(l.keys)
	if l.keys == counted {
		x, err := d.int(8)
		if err != nil {
			return req, err
		}
		if n = uint64(x); n > uint64(d.limits.RequestKeys) {
			return req, limitError("keys in a request", n, d.limits.RequestKeys)
		}
	}
	for range n {
		key, err := d.bytes("bytes in a key", d.limits.KeyBytes)
		if err != nil {
			return req, err
		}
		if req.keys, err = extend(d, req.keys, n, stringHeader); err != nil {
			return req, err
		}
		req.keys = append(req.keys, string(key))
		for range l.values {
			v, err := d.bytes("bytes in a value", d.limits.ValueBytes)
			if err != nil {
				return req, err
			}
			if req.values, err = extend(d, req.values, n*uint64(l.values), sliceHeader); err != nil {
				return req, err
			}
			req.values = append(req.values, v)
		}
	}
	var err error
	req.number, err = d.int(l.width)
	return req, err
}

// reply reads the reply to req.
func (d *decoder) reply(req request) (reply, error) {
	d.begin()
	l, rep := layouts[req.op], reply{}
	if l.replyValues {
		for range req.keys {
			v, err := d.bytes("bytes in a value", d.limits.ValueBytes)
			if err != nil {
				return rep, err
			}
			if rep.values, err = extend(d, rep.values, uint64(len(req.keys)), sliceHeader); err != nil {
				return rep, err
			}
			rep.values = append(rep.values, v)
		}
	}
	var err error
	rep.number, err = d.int(l.replyWidth)
	return rep, err
}

// int reads an integer of width bytes. An integer of less than eight bytes is unsigned.
func (d *decoder) int(width int) (int64, error) {
	clear(d.scratch[:])
	if err := d.fill(d.scratch[:width]); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(d.scratch[:])), nil
}

// bytes reads a length, which may be at most `most`, and then that many bytes.
func (d *decoder) bytes(what string, most int) ([]byte, error) {
	x, err := d.int(8)
	if err != nil {
		return nil, err
	}
	if uint64(x) > uint64(most) {
		return nil, limitError(what, uint64(x), most)
	}
	length := int(x)
	if d.frame += 8 + length; d.frame > d.limits.RequestBytes {
		return nil, limitError("bytes in a frame", d.frame, d.limits.RequestBytes)
	}
	b := []byte{}
	for len(b) < length {
		size := min(length, max(firstStep, 2*len(b)))
		if err := d.take(allocBytes(size) - allocBytes(len(b))); err != nil {
			return nil, err
		}
		grown := make([]byte, size)
		if err := d.fill(grown[copy(grown, b):]); err != nil {
			return nil, err
		}
		b = grown
	}
	return b, nil
}

// extend makes sure that list has capacity for one more element. The elements have the
// given size in bytes, and the list will have n elements in the end.
func extend[T any](d *decoder, list []T, n uint64, size int) ([]T, error) {
	if len(list) < cap(list) {
		return list, nil
	}
	more := min(int(n)-len(list), max(firstStep/size, len(list)))
	if err := d.take(more * size); err != nil {
		return nil, err
	}
	grown := make([]T, len(list), len(list)+more)
	copy(grown, list)
	return grown, nil
}

// begin resets the counts for a new frame.
func (d *decoder) begin() { d.frame, d.memory, d.most = 0, 0, math.MaxInt }

// take reserves n bytes of memory for the frame.
func (d *decoder) take(n int) error {
	d.memory += n
	if d.memory > d.most {
		return limitError("bytes of memory for the keys of a wait", d.memory, d.most)
	}
	return d.reserve(n)
}

// fill reads len(b) bytes. It returns an error if the stream ends before.
func (d *decoder) fill(b []byte) error {
	_, err := io.ReadFull(d.r, b)
	if err == io.EOF && len(b) > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}
