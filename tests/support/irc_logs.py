"""Logs of each client as tests write them: a sample of every action, written into folders and imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cablestore import CableStore
from cablestore.irc.importer import ImportReport, import_logs
from cablestore.irc.survey import find_logs

PHRASE = "a phrase"


@dataclass(frozen=True)
class Sample:
    """A day in the format of a client.

    In each sample ann joins, sets the topic and sends an action, bob joins and becomes bobby, cyd and dan leave.
    """

    client: str
    path: str
    text: str
    first_time: str
    passed_over: int = 0


SAMPLES = [
    Sample(
        "irssi",
        "2013/01/07/#garden.txt",
        """\
--- Log opened Mon Jan 07 09:00:00 2013
09:00 -!- ann [~ann@host] has joined #garden
09:00 -!- Irssi: #garden: Total of 4 nicks [1 ops, 0 halfops, 0 voices, 3 normal]
09:00 -!- Topic for #garden: weeds
09:01 < bob> hello <all>
09:02  * ann waves
09:03 -!- ann changed the topic of #garden to: flowers
09:04 -!- bob is now known as bobby
09:05 <@bobby> still me
09:06 -!- mode/#garden [+o bobby] by ann
09:07 -!- cyd [cyd@host] has joined #garden
09:07 -!- cyd [cyd@host] has left #garden [bye]
09:08 -!- dan [dan@host] has joined #garden
09:08 -!- dan [dan@host] has quit [Ping timeout]
09:09 -!- eve [eve@host] has joined #garden
09:09 -!- eve was kicked from #garden by ann [spam]
09:10 -NickServ(services@host)- you are known
--- Day changed Tue Jan 08 2013
00:01 <+ann> a new day
--- Log closed Tue Jan 08 00:02:00 2013
""",
        "2013-01-07 09:01",
        5,
    ),
    Sample(
        "WeeChat",
        "irc.libera.#garden.weechatlog",
        """\
2013-01-07 09:00:00\t-->\tann (~ann@host) has joined #garden
2013-01-07 09:00:00\t--\tTopic for #garden is "weeds"
2013-01-07 09:00:00\t--\tChannel #garden: 4 nicks (1 op, 0 voices, 3 normals)
2013-01-07 09:01:00\tbob\thello <all>
2013-01-07 09:02:00\t *\tann waves
2013-01-07 09:03:00\t--\tann has changed topic for #garden from "weeds" to "flowers"
2013-01-07 09:04:00\t--\tbob is now known as bobby
2013-01-07 09:05:00\t@bobby\tstill me
2013-01-07 09:06:00\t--\tMode #garden [+o bobby] by ann
2013-01-07 09:07:00\t-->\tcyd [account] (real name) (cyd@host) has joined #garden
2013-01-07 09:07:10\t<--\tcyd (cyd@host) has left #garden (bye)
2013-01-07 09:08:00\t-->\tdan (dan@host) has joined #garden
2013-01-07 09:08:10\t<--\tdan (dan@host) has quit (Ping timeout)
2013-01-07 09:09:00\t-->\teve (eve@host) has joined #garden
2013-01-07 09:09:10\t<--\tann has kicked eve (spam)
2013-01-07 09:10:00\t--\tNotice(NickServ): you are known
2013-01-08 00:01:00\t+ann\ta new day
""",
        "2013-01-07 09:01",
        4,
    ),
    Sample(
        "ZNC",
        "user/libera/#garden/2013-01-07.log",
        """\
[09:00:00] *** Joins: ann (~ann@host)
[09:01:00] <bob> hello <all>
[09:02:00] * ann waves
[09:03:00] *** ann changes topic to 'flowers'
[09:04:00] *** bob is now known as bobby
[09:05:00] <bobby> still me
[09:06:00] *** ann sets mode: +o bobby
[09:07:00] *** Joins: cyd (cyd@host)
[09:07:10] *** Parts: cyd (cyd@host) (bye)
[09:08:00] *** Joins: dan (dan@host)
[09:08:10] *** Quits: dan (dan@host) (Ping timeout)
[09:09:00] *** Joins: eve (eve@host)
[09:09:10] *** eve was kicked by ann (spam)
[09:10:00] -NickServ- you are known
[00:01:00] <ann> a new day
""",
        "2013-01-07 09:01",
        2,
    ),
    Sample(
        "energymech",
        "garden_20130107.log",
        """\
[09:00] *** Joins: ann (~ann@host)
[09:01] <bob> hello <all>
[09:02] * ann waves
[09:03] *** ann changes topic to 'flowers'
[09:04] *** bob is now known as bobby
[09:05] <bobby> still me
[09:06] *** ann sets mode: +o bobby
[09:07] *** Joins: cyd (cyd@host)
[09:07] *** Parts: cyd (cyd@host)
[09:08] *** Joins: dan (dan@host)
[09:08] *** Quits: dan (dan@host) (Ping timeout)
[00:01] <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "HexChat",
        "Libera-#garden.log",
        """\
**** BEGIN LOGGING AT Mon Jan  7 09:00:00 2013

Jan 07 09:00:00 *\tNow talking on #garden
Jan 07 09:00:00 *\tTopic for #garden is: weeds
Jan 07 09:00:00 *\tTopic for #garden set by ann!~ann@host (Sun Jan  6 08:00:00 2013)
Jan 07 09:00:00 *\tann (~ann@host) has joined
Jan 07 09:01:00 <bob>\thello <all>
Jan 07 09:02:00 *\tann waves
Jan 07 09:03:00 *\tann has changed the topic to: flowers
Jan 07 09:04:00 *\tbob is now known as bobby
Jan 07 09:05:00 <bobby>\tstill me
Jan 07 09:06:00 *\tann gives channel operator status to bobby
Jan 07 09:07:00 *\tcyd (cyd@host) has joined
Jan 07 09:07:10 *\tcyd (cyd@host) has left (bye)
Jan 07 09:08:00 *\tdan (dan@host) has joined
Jan 07 09:08:10 *\tdan has quit (Ping timeout)
Jan 07 09:09:00 *\teve (eve@host) has joined
Jan 07 09:09:10 *\tann has kicked eve from #garden (spam)
Jan 07 09:10:00 -NickServ-\tyou are known
Jan 08 00:01:00 <ann>\ta new day
**** ENDING LOGGING AT Tue Jan  8 00:02:00 2013
""",
        "2013-01-07 09:01",
        6,
    ),
    Sample(
        "XChat",
        "Libera-#garden.xchat.log",
        """\
**** BEGIN LOGGING AT Mon Jan  7 09:00:00 2013
Jan 07 09:00:00 -->\tYou are now talking on #garden
Jan 07 09:00:00 -->\tann (~ann@host) has joined #garden
Jan 07 09:01:00 <bob>\thello <all>
Jan 07 09:02:00 *\tann waves
Jan 07 09:03:00 ---\tann has changed the topic to: flowers
Jan 07 09:04:00 ---\tbob is now known as bobby
Jan 07 09:05:00 <bobby>\tstill me
Jan 07 09:06:00 ---\tann gives voice to bobby
Jan 07 09:07:00 -->\tcyd (cyd@host) has joined #garden
Jan 07 09:07:10 <--\tcyd (cyd@host) has left #garden (bye)
Jan 07 09:08:00 -->\tdan (dan@host) has joined #garden
Jan 07 09:08:10 <--\tdan has quit (Ping timeout)
Jan 08 00:01:00 <ann>\ta new day
""",
        "2013-01-07 09:01",
        2,
    ),
    Sample(
        "mIRC",
        "#garden.log",
        """\
\ufeffSession Start: Mon Jan 07 09:00:00 2013
Session Ident: #garden
[09:00] * Now talking in #garden
[09:00] * Topic is 'weeds'
[09:00] * Set by ann on Sun Jan 06 08:00:00
[09:00] * ann (~ann@host) has joined #garden
[09:01] <bob> hello <all>
[09:02] * ann waves
[09:03] * ann changes topic to 'flowers'
[09:04] * bob is now known as bobby
[09:05] <@bobby> still me
[09:06] * ann sets mode: +o bobby
[09:07] * cyd (cyd@host) has joined #garden
[09:07] * cyd (cyd@host) has left #garden (bye)
[09:08] * dan (dan@host) has joined #garden
[09:08] * dan (dan@host) Quit (Ping timeout)
[09:09] * eve (eve@host) has joined #garden
[09:09] * eve was kicked by ann (spam)
Session Time: Tue Jan 08 00:00:00 2013
[00:01] <ann> a new day
Session Close: Tue Jan 08 00:02:00 2013
""",
        "2013-01-07 09:01",
        6,
    ),
    Sample(
        "Supybot",
        "logs/#garden/#garden.2013-01-07.log",
        """\
2013-01-07T09:00:00  *** ann <~ann@host> has joined #garden
2013-01-07T09:01:00  <bob> hello <all>
2013-01-07T09:02:00  * ann waves
2013-01-07T09:03:00  *** ann changes topic to "flowers"
2013-01-07T09:04:00  *** bob is now known as bobby
2013-01-07T09:05:00  <bobby> still me
2013-01-07T09:06:00  *** ann sets mode: +o bobby
2013-01-07T09:07:00  *** cyd <cyd@host> has joined #garden
2013-01-07T09:07:10  *** cyd <cyd@host> has left #garden
2013-01-07T09:08:00  *** dan <dan@host> has joined #garden
2013-01-07T09:08:10  *** dan <dan@host> has quit IRC
2013-01-08T00:01:00  <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "Supybot without hosts",
        "logs/#garden/#garden.log",
        """\
2013-01-07T09:00:00  *** ann has joined #garden
2013-01-07T09:01:00  <bob> hello <all>
2013-01-07T09:02:00  * ann waves
2013-01-07T09:03:00  *** ann changes topic to "flowers"
2013-01-07T09:04:00  *** bob is now known as bobby
2013-01-07T09:05:00  <bobby> still me
2013-01-07T09:06:00  *** ann sets mode: +o bobby
2013-01-07T09:07:00  *** cyd has joined #garden
2013-01-07T09:07:10  *** cyd has left #garden
2013-01-07T09:08:00  *** dan has joined #garden
2013-01-07T09:08:10  *** dan has quit IRC
2013-01-08T00:01:00  <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "eggdrop",
        "garden.log.07Jan2013",
        """\
[00:00] --- Mon Jan  7 2013
[09:00] ann (~ann@host) joined #garden.
[09:01] <bob> hello <all>
[09:02] Action: ann waves
[09:03] Topic changed on #garden by ann!~ann@host: flowers
[09:04] Nick change: bob -> bobby
[09:05] <bobby> still me
[09:06] #garden: mode change '+o bobby' by ann!~ann@host
[09:07] cyd (cyd@host) joined #garden.
[09:07] cyd (cyd@host) left #garden.
[09:08] dan (dan@host) joined #garden.
[09:08] dan (dan@host) left irc: Ping timeout
[09:09] eve (eve@host) joined #garden.
[09:09] eve kicked from #garden by ann: spam
[00:00] --- Tue Jan  8 2013
[00:01] <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "ubuntu by day",
        "2013/01/07/#garden.txt",
        """\
=== ann [~ann@host] has joined #garden
[09:01] <bob> hello <all>
[09:02]  * ann waves
=== ann changed the topic of #garden to: flowers
=== bob is now known as bobby
[09:05] <bobby> still me
=== mode/#garden [+o bobby]  by ann
=== cyd [cyd@host] has joined #garden
=== cyd [cyd@host] has left #garden []
=== dan [dan@host] has joined #garden
=== dan [dan@host] has quit [Ping timeout]
[23:59] <ann> a new day
""",
        "2013-01-07 09:01",
        1,
    ),
    Sample(
        "The Lounge",
        "logs/ann/libera-8f2c71a0-5b1e-4a6c/#garden.log",
        """\
[2013-01-07T09:00:00.101Z] *** ann (~ann@host) joined
[2013-01-07T09:01:00.101Z] <bob> hello <all>
[2013-01-07T09:02:00.101Z] * @ann waves
[2013-01-07T09:03:00.101Z] *** ann changed topic to 'flowers'
[2013-01-07T09:04:00.101Z] *** bob changed nick to bobby
[2013-01-07T09:05:00.101Z] <@bobby> still me
[2013-01-07T09:06:00.101Z] *** ann set mode +o bobby
[2013-01-07T09:07:00.101Z] *** cyd (cyd@host) joined
[2013-01-07T09:07:10.101Z] *** cyd (cyd@host) left (bye)
[2013-01-07T09:08:00.101Z] *** dan (dan@host) joined
[2013-01-07T09:08:10.101Z] *** dan (dan@host) quit (Ping timeout)
[2013-01-07T09:09:00.101Z] *** eve (eve@host) joined
[2013-01-07T09:09:10.101Z] *** eve was kicked by ann (spam)
[2013-01-07T09:10:00.101Z] -NickServ- you are known
[2013-01-08T00:01:00.101Z] <+ann> a new day
""",
        "2013-01-07 09:01",
        2,
    ),
    Sample(
        "Konversation",
        "libera_#garden.log",
        """\

*** Logfile started
*** on Mon Jan 7 09:00:00 2013

[Monday, 7 January 2013] [09:00:00 CET] Join\tYou have joined the channel #garden (me@host).
[Monday, 7 January 2013] [09:00:00 CET] Topic\tThe channel topic is "weeds".
[Monday, 7 January 2013] [09:00:00 CET] Join\tann (~ann@host) has joined this channel.
[Monday, 7 January 2013] [09:01:00 CET] <bob>\thello <all>
[Monday, 7 January 2013] [09:02:00 CET] \t * ann waves
[Monday, 7 January 2013] [09:03:00 CET] Topic\tann sets the channel topic to "flowers".
[Monday, 7 January 2013] [09:04:00 CET] Nick\tbob is now known as bobby.
[Montag, 7. Januar 2013] [09:05:00] <bobby>\tstill me
[Mon Jan 7 2013] [09:06:00] Mode\tann gives channel operator privileges to bobby.
[Mon Jan 7 2013] [09:07:00] Join\tcyd (cyd@host) has joined this channel.
[Mon Jan 7 2013] [09:07:10] Part\tcyd (cyd@host) has left this channel (bye).
[Mon Jan 7 2013] [09:08:00] Join\tdan (dan@host) has joined this channel.
[Mon Jan 7 2013] [09:08:10] Quit\tdan (dan@host) has left this server (Ping timeout).
[Mon Jan 7 2013] [09:09:00] Join\teve (eve@host) has joined this channel.
[Mon Jan 7 2013] [09:09:10] Kick\teve has been kicked from the channel by ann (spam).
[Tue Jan 8 2013] [00:01:00] <ann>\ta new day
""",
        "2013-01-07 09:01",
        5,
    ),
    Sample(
        "Quassel",
        "2013-01-07/#garden.log",
        """\
[09:00:00] --> ann (~ann@host) has joined #garden
[09:00:00] * Topic for #garden is "weeds"
[09:01:00] <bob> hello <all>
[09:02:00] -*- ann waves
[09:03:00] * ann has changed topic for #garden to: "flowers"
[09:04:00] <-> bob is now known as bobby
[09:05:00] <@bobby> still me
[09:06:00] *** Mode #garden +o bobby by ann
[09:07:00] --> cyd (cyd@host) has joined #garden
[09:07:10] <-- cyd (cyd@host) has left #garden (bye)
[09:08:00] --> dan (dan@host) has joined #garden
[09:08:10] <-- dan (dan@host) has quit (Ping timeout)
[09:09:00] --> eve (eve@host) has joined #garden
[09:09:10] <-* eve has been kicked from #garden by ann (spam)
{Day changed to Tuesday, January 8, 2013}
[00:01:00] <+ann> a new day
""",
        "2013-01-07 09:01",
        2,
    ),
    Sample(
        "ISO 8601 with a zone",
        "garden/2013/log.txt",
        """\
2013-01-07T10:00:00+0100 *** Joins: ann (~ann@host)
2013-01-07T10:01:00+0100 <bob> hello <all>
2013-01-07T09:02:00Z * ann waves
2013-01-07T04:03:00-05:00 *** ann changes topic to 'flowers'
2013-01-07T10:04:00+01:00 *** bob is now known as bobby
2013-01-07T10:05:00+01:00 <bobby> still me
2013-01-08T01:01:00+01:00 <ann> a new day
""",
        "2013-01-07 09:01",
        0,
    ),
]


def laid(folder: Path, path: str, text: str) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def imported(store: CableStore, *paths: Path, **said: object) -> ImportReport:
    return import_logs(store, find_logs(paths, **said), seed_phrase=PHRASE)  # type: ignore[arg-type] # chosen by the test
