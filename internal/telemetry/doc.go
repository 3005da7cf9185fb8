// Package telemetry carries numbers from the workers of a job to the agent of their node.
//
// The channel is a pair of connected datagram sockets for each worker, which golaunch makes if somebody looks at the
// job ([Pair]). The worker inherits one end, whose descriptor is in [jobenv.ReportFDVar]. A [Reporter] collects records
// and sends them a few times a second. It never waits: if the agent has not read the datagrams before, the kernel
// refuses the next one, and the reporter drops its records and counts them. So numbers may be lost, but no step waits
// for them, and neither side holds more than a few datagrams.
//
// # Datagrams
//
// A datagram is the version (1 byte, 1), the number of records that were dropped so far (uvarint), and records:
//
//	kind     1 byte: 'v' values, 't' times, 's' state
//	step     uvarint, the number of completed steps; of a state 0
//	time     8 bytes, little endian: nanoseconds since 1970
//	steps    uvarint: of times, over how many steps they are summed; else 0
//	values   uvarint, the number of values, and for each
//	  name   uvarint, the number of bytes, and the bytes
//	  number 8 bytes, little endian: a float64; of times, seconds
//
// The agent trusts no datagram: [Decode] bounds all counts by the datagram's length.
package telemetry
