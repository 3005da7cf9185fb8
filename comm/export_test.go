package comm

import "time"

// OnExit has the watchdog of a group with these options call f instead of
// os.Exit.
func OnExit(o *Options, f func(code int)) *Options {
	o.exit = f
	return o
}

// Settled is what the environment makes of an error mode.
func Settled(mode ErrorMode) (ErrorMode, time.Duration, bool, error) {
	o := Options{ErrorMode: mode}
	err := o.settle()
	return o.ErrorMode, o.heartbeat, o.monitoring, err
}

// EchoOf is the rank whose failure an error only is an echo of.
func EchoOf(err error) *int { return echoOf(err) }
