import { DurableObject } from "cloudflare:workers";

/** Longest message, in UTF-16 units: a room is for talking, not for files. */
const MESSAGE_MAX = 4096;

/** One room: what one member says, all others hear. Sleeps between messages without losing its members. */
export class Room extends DurableObject {
  async fetch(request) {
    if (request.headers.get("Upgrade")?.toLowerCase() !== "websocket") {
      return new Response("Connect with a WebSocket.\n", { status: 426, headers: { Upgrade: "websocket" } });
    }
    const [client, server] = Object.values(new WebSocketPair());
    this.ctx.acceptWebSocket(server);
    return new Response(null, { status: 101, webSocket: client });
  }

  webSocketMessage(from, message) {
    if (typeof message !== "string" || message.length > MESSAGE_MAX) {
      from.close(1009, "text of at most 4096 characters");
      return;
    }
    for (const member of this.ctx.getWebSockets()) {
      if (member !== from) member.send(message);
    }
  }

  webSocketClose(member, code) {
    // 1005 and 1006 say that there was no code, and may not be sent.
    member.close(code === 1005 || code === 1006 ? 1000 : code);
  }
}

export default {
  /** The path is the room. */
  async fetch(request, env) {
    return env.ROOM.getByName(new URL(request.url).pathname).fetch(request);
  },
};
