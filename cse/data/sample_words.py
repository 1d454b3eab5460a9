"""Vocabulary of the generated sample.

Each topic has the lines ``who`` and ``where`` and lines ``verb: what``. ``/`` separates synonyms, ``;`` separates
items, ``~`` precedes verbs that contradict the ones before it, and ``+`` marks a plural.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    """An action: synonymous verbs, verbs that contradict them, and objects."""

    verbs: tuple[str, ...]
    opposites: tuple[str, ...]
    objects: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Topic:
    """People, places and actions that belong together."""

    name: str
    agents: tuple[tuple[str, ...], ...]
    places: tuple[tuple[str, ...], ...]
    actions: tuple[Action, ...]


_TEXT = """
# kitchen
who: chef/cook; baker/pastry maker; waiter/server; dishwasher/kitchen helper; grandmother/granny
where: in the kitchen/beside the stove; in a small restaurant/in a little eatery; at a street stall/at a food stand
chop/cut up: an onion; some carrots+/a few carrots+; a red pepper; fresh herbs+
heat/warm up ~ cool: the soup/the broth; a pot of milk/a pan of milk; the leftovers+/yesterday's meal; some rice
bake: a loaf of bread/some bread; an apple pie/an apple tart; a birthday cake; two trays of cookies/many cookies+
wash/rinse: the plates+/the dishes+; a frying pan/a skillet; the salad/the lettuce
taste/sample: the sauce/the gravy; a spicy curry; the new dessert
# music
who: musician/performer; violinist/fiddler; pianist/piano player; singer/vocalist; drummer/percussionist
where: on the stage/in front of an audience; in a recording studio/in a music studio; at a wedding/at a marriage party
play/perform: a violin/a fiddle; a slow song/a ballad; the national anthem; a jazz tune/a piece of jazz
tune/adjust: an old guitar; the grand piano; a cello
write/compose: a love song; a short opera; some film music/a soundtrack
carry/bring: a drum/a percussion instrument; two heavy speakers+; a music stand
record/tape: an album; a duet; a new single
# sport
who: athlete/sportsperson; goalkeeper/goalie; tennis player; coach/trainer; referee/umpire
where: in the stadium/in the arena; on the training field/on the practice field; at the sports club/at the sports center
kick/boot: the ball/the football; a penalty; a rolled-up sock
win/gain ~ lose: the final match/the championship game; a silver medal; the long race
throw/hurl ~ catch: a javelin/a spear; a frisbee/a flying disc; the basketball
watch/observe: a training session; the semifinal; a slow-motion replay
lift/raise ~ lower: a heavy trophy/a big cup; some weights+/some dumbbells+; a team flag
# school
who: teacher/instructor; student/pupil; professor/lecturer; librarian; headmaster/school principal
where: in the classroom/in class; in the library/among the bookshelves; on the campus/on the school grounds
explain/clarify: a difficult theorem/a hard theorem; the passive voice; the history of Rome/Roman history
read/study: a long novel; a chemistry textbook; an essay about bees/a paper about bees
correct/mark: the exams+/the tests+; some homework; a spelling mistake/a spelling error
borrow/check out ~ return: a dictionary; two atlases+; a book of poems/a poetry book
draw/sketch: a triangle; a map of Africa/an African map; the human heart
# garden
who: gardener; neighbor/person next door; florist/flower seller; landscaper/garden designer; volunteer/unpaid helper
where: in the garden/in the backyard; in a public park/in a city park; by the greenhouse/near the glasshouse
water/sprinkle: the roses+/the rose bushes+; a lawn/the grass; some tomato plants+/some tomatoes+
plant/put in ~ dig up: an oak tree/an oak; some tulips+; a row of beans
trim/prune: the hedge/the bushes+; a lemon tree; the vines+
pick/gather: ripe strawberries+/some strawberries+; a bunch of flowers/a bouquet; some apples+
paint: a wooden fence/a timber fence; the garden gate; a bird house/a nesting box
# office
who: manager/boss; secretary/assistant; accountant/bookkeeper; lawyer/attorney; programmer/software developer
where: in the office/at the workplace; in a meeting room/in a conference room; at the head office/at the headquarters
sign ~ reject: a contract/an agreement; the lease; a letter of complaint/a complaint
send/mail ~ receive: an invoice/a bill; the annual report/the yearly report; a short message/a brief note
hire/take on ~ fire: a new engineer; an intern/a trainee; two salespeople+
repair/fix ~ break: the printer/the printing machine; a laptop/a portable computer; the coffee machine
cancel/call off ~ schedule: an interview; the weekly meeting; a phone conference/a conference call
# hospital
who: doctor/physician; nurse; surgeon; paramedic/ambulance worker; dentist
where: in the hospital/at the clinic; in the emergency room/in the emergency ward; in a field camp/in a relief camp
examine/inspect: a broken arm/a fractured arm; the patient; an X-ray image/an X-ray
treat/take care of ~ neglect: a sick child/an ill child; a deep wound/a deep cut; two injured hikers+
measure/check: the blood pressure; a newborn's weight; the temperature of a baby/a baby's temperature
prescribe/order: an antibiotic; some painkillers+/some pain medication; a strict diet
close/shut ~ open: the curtain; a medicine cabinet; the ambulance doors+
# farm
who: farmer/grower; shepherd/sheep herder; farmhand/farm worker; beekeeper; veterinarian/animal doctor
where: on the farm/on the ranch; in the barn/in the stable; in the valley/at the foot of the hills
feed/hand-feed: the cows+/the cattle+; a flock of chickens/some hens+; a newborn lamb/a baby sheep
harvest/reap ~ sow: the wheat; a field of corn/some maize; the barley
milk: a goat; the dairy cows+
sell/market ~ buy: some eggs+/a dozen eggs+; a tractor; the wool of the sheep/sheep's wool
shear/clip: the sheep; an alpaca; a ram
# building
who: carpenter/woodworker; electrician; plumber/pipe fitter; bricklayer/mason; architect/building designer
where: at the construction site/at the building site; on the roof/on top of the house; in the basement/in the cellar
build/construct ~ demolish: a brick wall/a wall of bricks; a staircase/a flight of stairs; a stone bridge
install/put in ~ remove: a new window; the solar panels+; a water heater/a boiler
saw/cut: a thick board/a thick plank; some pipes+; a beam
load/fill ~ unload: a truck/a lorry; the cement mixer; a wheelbarrow
drill/bore: a hole in the wall; a deep well; some screw holes+
# sea
who: fisherman/angler; sailor/seaman; diver; lifeguard/beach guard; captain/skipper
where: at the harbor/in the port; on the beach/on the shore; near the island/off the island
catch/hook ~ release: a large tuna/a big tuna; some crabs+; an octopus
clean/scrub ~ dirty: the deck; a fishing boat/a fishing vessel; the hull of the yacht/the yacht's hull
rescue/save ~ abandon: a drowning swimmer; two tourists+/two travelers+; a stranded dolphin
steer/navigate: a ferry; an old ship/an ancient ship; a rubber boat/an inflatable boat
mend/sew: a torn sail/a ripped sail; the nets+; a wetsuit/a diving suit
# travel
who: tourist/traveler; bus driver; pilot/airman; tour guide; taxi driver/cab driver
where: at the airport/in the terminal; at the train station/at the railway station; in the mountains/in the highlands
photograph/snap: a waterfall; the cathedral/the big church; a famous statue/a well-known statue
pack/fill ~ unpack: a suitcase/a travel bag; the backpack/the rucksack; a picnic basket
board/enter ~ leave: the night train; a crowded bus/a full bus; a small plane/a little aircraft
book/reserve ~ cancel: a hotel room; two tickets+; a rental car/a hire car
ask about/inquire about: the way to the museum; the delay; the price of a map
# shop
who: customer/shopper; cashier/checkout clerk; shopkeeper/store owner; tailor; jeweler
where: in the store/in the shop; at the market/at the bazaar; in the shopping mall/in the shopping center
buy/purchase ~ sell: a winter coat; a pair of shoes/some shoes+; a gold ring/a ring made of gold
count/add up: the coins+; the day's earnings+/the day's takings+; some banknotes+
wrap/gift-wrap ~ unwrap: a present/a gift; the porcelain vase/the china vase; a teddy bear
try on/put on ~ take off: a straw hat; a blue dress; sunglasses+/dark glasses+
pay for: the groceries+/the food; a used bicycle/a second-hand bike; some batteries+
# animals
who: dog/hound; cat/kitty; monkey; horse/pony; parrot
where: in the yard/in the courtyard; at the zoo/in the animal park; in the woods/in the forest
chase/run after ~ avoid: a squirrel; a rubber ball; the mail carrier/the postman
eat/devour: a banana; some nuts+; a piece of cheese/some cheese
drag/pull ~ push: a wooden cart/a wooden wagon; an old blanket; a long branch/a long stick
sniff/smell: a flower; the wet shoes+/the soaked shoes+; a paper bag
bury/hide ~ uncover: a bone; a shiny spoon; the car keys+
# news
who: politician/lawmaker; journalist/reporter; mayor/head of the city; police officer/cop; judge
where: at the town hall/at the city hall; at a press conference/at a news briefing; in the capital/in the capital city
approve/pass ~ block: a new law/a new act; the budget/the spending plan; a tax cut/a reduction in taxes
criticize/condemn ~ praise: the government/the administration; a peace plan; the election result/the outcome of the vote
arrest/detain ~ set free: a suspect/an alleged criminal; two protesters+/two demonstrators+; the bank robber
interview/question: a witness/an eyewitness; the prime minister/the premier; a famous actor/a film star
publish/release ~ hold back: a statement; some secret documents+/some classified papers+; a list of names
"""

TIMES = (
    ("early in the morning", "at daybreak"),
    ("around noon", "at midday"),
    ("in the afternoon", "after lunch"),
    ("in the evening", "at dusk"),
    ("late at night", "after midnight"),
    ("on a rainy day", "in wet weather"),
    ("in winter", "in the cold season"),
    ("in summer", "in the hottest months"),
    ("before the holidays", "ahead of the holidays"),
    ("during a storm", "in stormy weather"),
)
TRAITS = (
    ("", ""),
    ("", ""),
    ("young", "youthful"),
    ("old", "elderly"),
    ("tired", "weary"),
    ("happy", "cheerful"),
    ("nervous", "anxious"),
    ("strong", "powerful"),
    ("tall", "very tall"),
)
NUMBERS = (("",), ("two", "a couple of"), ("three",), ("several", "quite a few"))
IRREGULAR = {
    "bring": ("brought", "brought"),
    "break": ("broke", "broken"),
    "build": ("built", "built"),
    "buy": ("bought", "bought"),
    "catch": ("caught", "caught"),
    "cut": ("cut", "cut"),
    "dig": ("dug", "dug"),
    "draw": ("drew", "drawn"),
    "eat": ("ate", "eaten"),
    "feed": ("fed", "fed"),
    "hand-feed": ("hand-fed", "hand-fed"),
    "hide": ("hid", "hidden"),
    "hold": ("held", "held"),
    "leave": ("left", "left"),
    "lose": ("lost", "lost"),
    "pay": ("paid", "paid"),
    "put": ("put", "put"),
    "read": ("read", "read"),
    "run": ("ran", "run"),
    "saw": ("sawed", "sawn"),
    "sell": ("sold", "sold"),
    "send": ("sent", "sent"),
    "set": ("set", "set"),
    "sew": ("sewed", "sewn"),
    "shear": ("sheared", "shorn"),
    "shut": ("shut", "shut"),
    "sow": ("sowed", "sown"),
    "take": ("took", "taken"),
    "throw": ("threw", "thrown"),
    "win": ("won", "won"),
    "write": ("wrote", "written"),
}
DOUBLED = frozenset(
    (
        "chop",
        "clip",
        "cut",
        "dig",
        "drag",
        "gift-wrap",
        "put",
        "run",
        "scrub",
        "set",
        "shut",
        "snap",
        "trim",
        "unwrap",
        "win",
        "wrap",
    )
)
PLURALS = {"fisherman": "fishermen", "seaman": "seamen", "airman": "airmen", "person next door": "people next door"}
PLURALS |= {"head of the city": "heads of the city", "sportsperson": "sportspeople"}


def topics() -> tuple[Topic, ...]:
    """Parse the vocabulary."""
    found = []
    for block in _TEXT.split("\n# ")[1:]:
        name, who, where, *lines = block.strip().split("\n")
        actions = []
        for line in lines:
            verbs, objects = line.split(":", 1)
            same, _, opposite = verbs.partition("~")
            actions.append(Action(_ways(same), _ways(opposite), tuple(map(_ways, objects.split(";")))))
        agents = tuple(map(_ways, who.removeprefix("who:").split(";")))
        places = tuple(map(_ways, where.removeprefix("where:").split(";")))
        found.append(Topic(name, agents, places, tuple(actions)))
    return tuple(found)


def _ways(text: str) -> tuple[str, ...]:
    return tuple(way.strip() for way in text.split("/") if way.strip())
