package telemetry

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Kind says what the values of a [Record] are.
type Kind byte

const (
	// Values are numbers at a step, such as the loss.
	Values Kind = 'v'
	// Times are the seconds that the parts of steps took.
	Times Kind = 't'
	// State are numbers that say how the process and its GPU are at the moment. They have no step.
	State Kind = 's'
)

// The parts of a step that goddp itself measures. Programs may add others.
const (
	Data       = "data"       // the loop waits for a batch
	Forward    = "forward"    // the loss is computed
	Backward   = "backward"   // the gradients are computed
	Wait       = "wait"       // the host waits for reductions and, on a GPU, for its kernels
	Optimizer  = "optimizer"  // the parameters are updated
	Replay     = "replay"     // a captured step is launched
	Checkpoint = "checkpoint" // a checkpoint is saved
	Evaluation = "evaluation" // the model is evaluated
	Log        = "log"        // the loss is read and reduced for a line of the log
	Callback   = "callback"   // a callback of the program runs
	Other      = "other"      // everything else
)

// CheckpointSeconds is the name of the value that says that the checkpoint of its step is complete and durable, so long after
// its save began.
const CheckpointSeconds = "checkpoint_seconds"

// The numbers of a State. Those of a GPU are of the whole GPU.
const (
	GPUClock               = "gpu_clock_mhz"             // of the multiprocessors
	GPUMaxClock            = "gpu_max_clock_mhz"         // the highest that it can have
	GPUTemperature         = "gpu_temperature_celsius"   //
	GPUPower               = "gpu_power_watts"           //
	GPUPowerLimit          = "gpu_power_limit_watts"     //
	GPUSlowedByTemperature = "gpu_slowed_by_temperature" // 1: the clock is low for this reason; else 0
	GPUSlowedByPowerBrake  = "gpu_slowed_by_power_brake" // as above: the power supply asks for it
	GPUSlowedByHardware    = "gpu_slowed_by_hardware"    // as above: one of the two before, or another signal
	GPUSlowedByPowerLimit  = "gpu_slowed_by_power_limit" // as above
	GPUECCErrors           = "gpu_ecc_errors"            // uncorrected memory errors since the driver was loaded
	GPUNVLinks             = "gpu_nvlinks"               // active ones
	CPUWaitingThreads      = "cpu_waiting_threads"       // mean number of the process's threads that could run, but have no CPU core
	NetworkSpeed           = "network_gbit_per_second"   // of the host's RDMA links together, else of its fastest interface
	TCPResent              = "tcp_resent_ratio"          // part of the host's TCP segments that were sent again
)

// A Value is a named number.
type Value struct {
	Name   string
	Number float64
}

// A Record is what a worker reports at once.
type Record struct {
	Kind   Kind
	Step   int64 // the number of completed steps
	Time   int64 // nanoseconds since 1970
	Steps  int   // of Times: over how many steps they are summed
	Values []Value
}

const (
	version = 1
	// MaxStep is the greatest number of steps that is read. JavaScript knows no greater whole numbers.
	MaxStep = 1 << 53
	// MaxName is the greatest length of a name in bytes. A longer one is cut.
	MaxName = 128
	// maxValues is the greatest number of values in a record. More make several records.
	maxValues = 64
	// MaxDatagram is the greatest length of a datagram: sendSize, and one record.
	MaxDatagram = sendSize + maxRecord
	maxRecord   = 64 + maxValues*(MaxName+10)
)

// appendRecord appends a record of at most maxValues values to a datagram.
func appendRecord(b []byte, r *Record) []byte {
	b = append(b, byte(r.Kind))
	b = binary.AppendUvarint(b, uint64(max(r.Step, 0)))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Time))
	b = binary.AppendUvarint(b, uint64(r.Steps))
	b = binary.AppendUvarint(b, uint64(len(r.Values)))
	for _, v := range r.Values {
		name := cut(v.Name)
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Number))
	}
	return b
}

// cut shortens a name to at most MaxName bytes, at the end of a whole character.
func cut(name string) string {
	if len(name) <= MaxName {
		return name
	}
	n := MaxName
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}

// errDatagram is the error of a datagram that no Reporter has sent.
var errDatagram = errors.New("telemetry: a datagram is not in the format of version 1")

// Decode calls take for each record of a datagram, and returns the number of records that the worker has dropped so
// far. The names are valid UTF-8, of at most [MaxName] bytes. take must not keep the record or its values.
func Decode(datagram []byte, take func(*Record)) (dropped uint64, err error) {
	d := decoder{rest: datagram}
	if d.byte() != version {
		return 0, errDatagram
	}
	dropped = d.uvarint()
	var r Record
	for len(d.rest) > 0 && !d.isBad {
		r = Record{Kind: Kind(d.byte()), Step: int64(min(d.uvarint(), MaxStep)), Time: int64(d.uint64()), Steps: int(min(d.uvarint(), math.MaxInt32)), Values: r.Values[:0]}
		for n := d.uvarint(); n > 0 && !d.isBad; n-- {
			name, i := d.bytes(d.uvarint()), len(r.Values)
			v := Value{Number: math.Float64frombits(d.uint64())}
			if i < cap(r.Values) && r.Values[:i+1][i].Name == string(name) { // as in the record before: the string need not be made
				v.Name = r.Values[:i+1][i].Name
			} else {
				v.Name = cut(strings.ToValidUTF8(string(name), "\uFFFD"))
			}
			r.Values = append(r.Values, v)
		}
		if !d.isBad && slices.Contains([]Kind{Values, Times, State}, r.Kind) { // a later version may have other kinds
			take(&r)
		}
	}
	if d.isBad {
		return dropped, errDatagram
	}
	return dropped, nil
}

// decoder reads a datagram. After the end of the datagram all values are zero.
type decoder struct {
	rest  []byte
	isBad bool // the datagram ended too early
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.rest)) {
		d.rest, d.isBad = nil, true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uint64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.bytes(math.MaxUint64)
		return 0
	}
	d.rest = d.rest[n:]
	return v
}
