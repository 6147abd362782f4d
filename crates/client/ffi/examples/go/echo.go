// An echo server and its client in Go, over libraas by cgo. Go's own sockets do not go through the C library, so
// `raas run` leaves them on TCP (docs/use/run.md); this is the way for Go programs.
//
//	export PKG_CONFIG_PATH=$HOME/.local/lib/pkgconfig LD_LIBRARY_PATH=$HOME/.local/lib   # docs/use/c.md installs libraas there
//	go build -o echo echo.go
//	./echo server 7500
//	./echo client 127.0.0.1 7500 10000000
package main

/*
#cgo pkg-config: raas
#include <raas.h>
#include <stdlib.h>
#include <sys/socket.h>
*/
import "C"

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"unsafe"
)

// conn is a connection of libraas: an io.Reader, io.Writer and io.Closer. A call that waits has a thread of its own, and
// other goroutines run meanwhile.
type conn struct{ fd C.int }

func target(host string, port int) (C.raas_target, error) {
	var to C.raas_target
	name := C.CString(host)
	defer C.free(unsafe.Pointer(name))
	code, err := C.raas_target_set(&to, name, C.uint16_t(port))
	if code < 0 {
		return to, fmt.Errorf("%s: %w", host, err)
	}
	return to, nil
}

func dial(host string, port int) (*conn, error) {
	to, err := target(host, port)
	if err != nil {
		return nil, err
	}
	fd, err := C.raas_connect(&to, 0)
	if fd < 0 {
		return nil, fmt.Errorf("connect to %s: %w", host, err)
	}
	return &conn{fd}, nil
}

func (c *conn) Read(room []byte) (int, error) {
	if len(room) == 0 {
		return 0, nil
	}
	count, err := C.raas_recv(c.fd, unsafe.Pointer(&room[0]), C.uint32_t(len(room)), C.RAAS_WAIT)
	switch {
	case count == C.RAAS_FAILED:
		return 0, fmt.Errorf("receive: %w", err)
	case count == 0:
		return 0, io.EOF
	}
	return int(count), nil
}

func (c *conn) Write(data []byte) (int, error) {
	done := 0
	for done < len(data) {
		count, err := C.raas_send(c.fd, unsafe.Pointer(&data[done]), C.uint32_t(len(data)-done), C.RAAS_WAIT)
		if count == C.RAAS_FAILED {
			return done, fmt.Errorf("send: %w", err)
		}
		done += int(count)
	}
	return done, nil
}

// CloseWrite tells the peer that no more is sent.
func (c *conn) CloseWrite() error {
	if code, err := C.raas_shutdown(c.fd, C.SHUT_WR); code < 0 {
		return err
	}
	return nil
}

func (c *conn) Close() error {
	if code, err := C.raas_close(c.fd); code < 0 {
		return err
	}
	return nil
}

// server echoes to one caller, until the caller ends.
func server(port int) error {
	at, err := target("0.0.0.0", port)
	if err != nil {
		return err
	}
	listener, err := C.raas_listen(&at, 0)
	if listener < 0 {
		return fmt.Errorf("listen: %w", err)
	}
	defer C.raas_close(listener)
	fmt.Println("listening")
	fd, err := C.raas_accept(listener, 0)
	if fd < 0 {
		return fmt.Errorf("accept: %w", err)
	}
	caller := &conn{fd}
	defer caller.Close()
	// A plain loop: io.Copy would do too.
	room := make([]byte, 64<<10)
	for {
		count, err := caller.Read(room)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := caller.Write(room[:count]); err != nil {
			return err
		}
	}
}

func byteAt(place int) byte { return byte(place*31 + place>>8) }

// client sends bytes from one goroutine and checks in another what comes back.
func client(host string, port, total int) error {
	peer, err := dial(host, port)
	if err != nil {
		return err
	}
	defer peer.Close()
	sent := make(chan error, 1)
	go func() {
		data := make([]byte, total)
		for place := range data {
			data[place] = byteAt(place)
		}
		_, err := peer.Write(data)
		if err == nil {
			err = peer.CloseWrite()
		}
		sent <- err
	}()
	back, err := io.ReadAll(peer)
	if err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if len(back) != total {
		return fmt.Errorf("%d bytes came back of %d", len(back), total)
	}
	for place, value := range back {
		if value != byteAt(place) {
			return fmt.Errorf("byte %d is %d, and not %d", place, value, byteAt(place))
		}
	}
	fmt.Printf("%d bytes came back\n", total)
	return nil
}

func main() {
	args := append(os.Args[1:], "", "", "", "")
	var err error
	switch args[0] {
	case "server":
		port, _ := strconv.Atoi(args[1])
		err = server(port)
	case "client":
		port, _ := strconv.Atoi(args[2])
		total, _ := strconv.Atoi(args[3])
		err = client(args[1], port, total)
	default:
		err = fmt.Errorf("usage: echo server PORT | echo client HOST PORT BYTES")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
