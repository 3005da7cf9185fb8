package doctor

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inventing lists drivers of virtual interfaces that report a fixed speed instead of the network's. A container's
// eth0 is usually a veth, which reports 10 Gbit/s on every host.
var inventing = []string{"veth", "tun", "bridge"}

// interfaceSpeed returns the speed of a network interface in bytes per second; 0 if it is unknown, as in many virtual machines
// and in containers.
func interfaceSpeed(name string) float64 {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(socket)
	info, err := unix.IoctlGetEthtoolDrvinfo(socket, name)
	if err != nil || slices.Contains(inventing, unix.ByteSliceToString(info.Driver[:])) {
		return 0
	}
	return statedSpeed(socket, name)
}

// statedSpeed returns the speed that an interface's driver reports; 0 if unknown. It uses ethtool's ioctl,
// because /sys shows the interfaces of the network namespace in which it was mounted.
func statedSpeed(socket int, name string) float64 {
	const getSettings = 1 // ETHTOOL_GSET
	settings := struct {  // struct ethtool_cmd
		command, supported, advertising uint32
		speed                           uint16
		_                               [14]byte
		speedHigh                       uint16
		_                               [14]byte
	}{command: getSettings}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&settings)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	if _, _, code := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); code != 0 {
		return 0
	}
	const unknown = 1<<32 - 1
	megabits := uint32(settings.speedHigh)<<16 | uint32(settings.speed)
	if megabits == unknown {
		return 0
	}
	return float64(megabits) * 1e6 / 8
}
