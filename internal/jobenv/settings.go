package jobenv

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Settings are the variables by which a user changes how goddp behaves. Unless a field's comment names a default,
// the default is the zero value.
type Settings struct {
	Failures Failures
	Flight   Flight
	Security Security
	Device   Device

	NoSmallAllReduce bool   // leave small all-reduces of GPUs to NCCL
	HostID           string // replaces the host's own id; ranks with equal ids share memory
}

// ReadSettings reads all settings. The error names each variable with a bad value.
func ReadSettings(lookup Lookup) (Settings, error) {
	r := reader{lookup: lookup}
	s := Settings{
		Failures: r.failures(), Flight: r.flight(), Security: r.security(), Device: r.device(),
		NoSmallAllReduce: r.isOn(false, NoSmallAllReduceVar), HostID: r.text(HostIDVar),
	}
	return s, r.err()
}

// Failures says what happens when a call of a group fails, and what is checked.
type Failures struct {
	NoHandling, CleanUpOnly, BlockingWait bool // at most one is true; by default a failure ends the process
	Heartbeat                             time.Duration
	Monitoring                            bool // by default true
	ReportStragglers, CheckCalls          bool // set by GODDP_DEBUG=INFO and DETAIL
}

// DefaultHeartbeat is the default of Failures.Heartbeat.
const DefaultHeartbeat = 600 * time.Second

func (r *reader) failures() Failures {
	const most = int(math.MaxInt64 / time.Second)
	heartbeat := r.number(int(DefaultHeartbeat/time.Second), 1, math.MaxInt, HeartbeatVars...)
	f := Failures{
		BlockingWait: r.isOn(false, BlockingWaitVars...),
		Heartbeat:    time.Duration(min(heartbeat, most)) * time.Second,
		Monitoring:   r.isOn(true, MonitoringVars...),
	}
	handling := r.oneOf([]string{"0", "1", "2", "3"}, "0, 1, 2 or 3", AsyncErrorHandlingVars...)
	if name, _ := r.first(AsyncErrorHandlingVars...); f.BlockingWait && handling != "" && handling != "0" {
		r.addf("blocking wait and asynchronous error handling are both on, want one of them: set %s=0, or turn blocking wait off", name)
	}
	f.NoHandling, f.CleanUpOnly = handling == "0" && !f.BlockingWait, handling == "2"
	debug := r.oneOf([]string{"OFF", "INFO", "DETAIL"}, "OFF, INFO or DETAIL", DebugVars...)
	f.ReportStragglers, f.CheckCalls = debug == "INFO" || debug == "DETAIL", debug == "DETAIL"
	return f
}

// Flight says what the flight recorder keeps.
type Flight struct {
	Entries       int    // size of the ring; 0 records nothing
	DumpOnFailure bool   // write dumps when a group fails; by default true
	Dir           string // the folder for dumps; "" if the user names none
	JobID, RunID  string // the job's ids, or ""
}

// DefaultEntries is the default of Flight.Entries. MaxEntries is the largest value of Flight.Entries, which takes
// about 2 GB.
const (
	DefaultEntries = 2000
	MaxEntries     = 1 << 24
)

// ReadFlight reads these settings alone.
func ReadFlight(lookup Lookup) (Flight, error) {
	r := reader{lookup: lookup}
	return r.flight(), r.err()
}

func (r *reader) flight() Flight {
	return Flight{
		Entries:       r.number(DefaultEntries, 0, MaxEntries, FlightEntriesVars...),
		DumpOnFailure: r.isOn(true, DumpOnFailureVars...),
		// PyTorch's variables name a prefix of file names. goddp uses the prefix as the name of a folder, so that
		// its dumps and PyTorch's are in different places.
		Dir:   cmp.Or(r.text(FlightDirVar), strings.TrimRight(r.text(FlightPrefixVars...), "_-./")),
		JobID: r.text(JobIDVar), RunID: r.text(RunIDVar),
	}
}

// Security says how a job authenticates its processes.
type Security struct {
	TokenFile   string // the file that holds the job's secret
	Token       string // the secret itself, for jobs whose nodes have no file in common; TokenFile takes precedence
	Insecure    bool   // a store serves every client
	Unprotected bool   // data between ranks on different hosts are neither encrypted nor authenticated
}

// ReadSecurity reads these settings alone.
func ReadSecurity(lookup Lookup) (Security, error) {
	r := reader{lookup: lookup}
	return r.security(), r.err()
}

func (r *reader) security() Security {
	return Security{
		TokenFile: r.text(TokenFileVar), Token: r.text(TokenVar),
		Insecure: r.isOn(false, InsecureVar), Unprotected: r.isOn(false, UnprotectedVar),
	}
}

// Device says which device a rank computes on, and how.
type Device struct {
	Kind string // "cpu", "cuda", or "" for a GPU if there is one
	GPU  int    // the GPU's number; -1: the local rank is the number

	AllowTF32, TuneConvolutions, Nondeterministic bool
}

// ReadDevice reads these settings alone.
func ReadDevice(lookup Lookup) (Device, error) {
	r := reader{lookup: lookup}
	return r.device(), r.err()
}

func (r *reader) device() Device {
	d := Device{
		GPU: -1, AllowTF32: r.isOn(false, AllowTF32Var), TuneConvolutions: r.isOn(false, TuneConvolutionsVar),
		Nondeterministic: r.isOn(false, NondeterministicVar),
	}
	d.Kind = r.text(DeviceVar)
	if number, ok := strings.CutPrefix(d.Kind, "cuda:"); ok {
		if n, err := strconv.ParseUint(number, 10, 31); err == nil {
			d.Kind, d.GPU = "cuda", int(n)
		}
	}
	if !slices.Contains([]string{"", "cpu", "cuda"}, d.Kind) {
		r.errs = append(r.errs, bad(DeviceVar, d.Kind, "cpu, cuda, or cuda:N with a GPU's number N"))
	}
	return d
}

// NaNCheck reports whether package ddp is to check gradients for NaN and Inf.
func NaNCheck(lookup Lookup) (bool, error) {
	r := reader{lookup: lookup}
	return r.isOn(false, NaNCheckVars...), r.err()
}

// Threads returns the number of threads of each of localSize ranks on this host: OMP_NUM_THREADS if the user
// chose it, else the rank's share of the cores.
func Threads(lookup Lookup, localSize int) (int, error) {
	r := reader{lookup: Users(lookup)}
	n := r.number(max(1, runtime.GOMAXPROCS(0)/localSize), 1, math.MaxInt, ThreadsVar)
	return n, r.err()
}

// marks are the variables that mark golaunch's choices. A golaunch that a worker starts is for another job.
var marks = map[string]string{
	FlightDirVar: LauncherFlightDirVar,
	TokenFileVar: LauncherSecretVar,
	ThreadsVar:   LauncherThreadsVar,
}

// Chosen returns the entries by which golaunch gives its workers a value that the user has not given.
func Chosen(name, value string) []string {
	return []string{name + "=" + value, marks[name] + "=" + value}
}

// Users returns a Lookup of the values that the user set. It hides values that golaunch chose.
func Users(lookup Lookup) Lookup {
	return func(name string) (string, bool) {
		value, ok := lookup(name)
		if mark := marks[name]; ok && mark != "" {
			ours, _ := lookup(mark)
			ok = value != ours
		}
		if !ok {
			value = ""
		}
		return value, ok
	}
}
