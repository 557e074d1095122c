// Command caddy-scafo is Caddy with its standard modules and those of scafo.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "scafo.dev/caddy"
)

func main() {
	caddycmd.Main()
}
